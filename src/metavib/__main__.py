"""`python -m metavib` is the command `metavib`."""

import sys

from metavib.cli import main

sys.exit(main())

"""`python -m metavib` is the command `metavib`."""

import sys

from metavib.interfaces.cli.main import main

sys.exit(main())

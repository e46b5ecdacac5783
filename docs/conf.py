"""The documentation site: `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the package `website`

from metavib import __version__

project = "metavib"
author = "The metavib team"
release = __version__
language = "en"
smartquotes = False  # they would make one dash of the two of a flag
highlight_language = "text"  # of blocks that name none: commands and what they print

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "website"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # tutorials show what `make tutorials` kept in them

myst_heading_anchors = 4  # links to headings, as GitHub makes them
myst_links_external_new_tab = False

napoleon_google_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures are long enough; docstrings and tables say what is taken
add_module_names = False

html_theme = "furo"
html_title = "metavib"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

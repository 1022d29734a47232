"""The documentation site: the Markdown pages as they are, and pages made from the code and from the
records. `make site` builds it into build/site."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from docs import site_pages  # noqa: E402

project = "longreach"
author = copyright = "The longreach authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
]

# The sources are the whole checkout, so that links between pages and to files need no change.
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "experiments/records/*/table.md",
]
exclude_patterns = [".*", "build", "runs", "dist", "**/node_modules"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_inherit_docstrings = False
autodoc_use_type_comments = False  # there are none, and looking for them reads every source anew
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "longreach"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": False}
smartquotes = False  # quotes stay as the pages have them
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def setup(app):  # type: ignore[no-untyped-def]
    site_pages.connect(app)

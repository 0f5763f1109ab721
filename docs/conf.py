"""The site: `make docs` builds it in docs/_build/html."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import norewind  # noqa: E402
from tools import sphinx_pages  # noqa: E402

project = "norewind"
author = "The norewind authors"
copyright = author
version = release = norewind.__version__

extensions = ["sphinx.ext.napoleon", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
highlight_language = "none"  # most blocks are commands; Python says so
smartquotes = False
myst_heading_anchors = 3

# furo: plain pages with one sidebar suit a small site. It loads no fonts or scripts from other sites, so the pages work
# offline. It has a dark mode, fits small screens, and needs few packages besides Sphinx.
html_theme = "furo"
html_title = f"norewind {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

napoleon_use_ivar = True  # attributes in the docstring of a class do not collide with its properties
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

sphinx_pages.write_api(ROOT / "docs/api", norewind)
sphinx_pages.write_copies(ROOT, ROOT / "docs/project")
sphinx_pages.write_notebooks(ROOT, ROOT / "docs/project")


def setup(app):
    """Links out of docs/, and docstrings, which are Markdown, for Sphinx."""
    app.connect("source-read", lambda app, name, source: sphinx_pages.link_pages(ROOT, name, source))
    app.connect("autodoc-process-docstring", lambda *event: sphinx_pages.to_rst(event[-1]))
    app.connect("autodoc-process-signature", lambda *event: (sphinx_pages.signature_text(event[-2]), event[-1]))
    app.connect("autodoc-skip-member", lambda app, kind, name, value, *_: sphinx_pages.is_field(value) or None)

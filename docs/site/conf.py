"""The site of docs/, by Sphinx and furo: both are kept, search without a server and load nothing from elsewhere. MkDocs
1 is kept no more, Material for MkDocs ends in November 2026, and Zensical after it has no stable version yet."""

import os
from importlib.metadata import version as version_of

project = "opgate"
version = release = version_of("opgate")
copyright = "the authors of opgate"
html_title = f"opgate {version}"
extensions = ["myst_parser"]
myst_heading_anchors = 6  # links to headings as on the pages of a repository
myst_enable_extensions = ["strikethrough"]
# The pages shorten answers by "...", which is no JSON.
suppress_warnings = ["misc.highlighting_failure"]
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
templates_path = ["templates"]
# Each version of the site has a folder of its own; DOCS_VERSIONS names those that lie beside it.
html_context = {"versions": os.environ.get("DOCS_VERSIONS", "").split()}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}

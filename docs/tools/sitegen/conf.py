"""Sphinx's settings. `python docs/tools/build_site.py` is the way to build."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from wardround import __version__

project = "wardround"
author = "the wardround contributors"
copyright = author
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sitegen.extension"]

default_role = "code"
myst_heading_anchors = 4
autodoc_default_options = {"members": True, "imported-members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
suppress_warnings = [
    "ref.python"
]  # every member has a class `Params`: the name alone is ambiguous in signatures
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries = False
pygments_style, pygments_dark_style = "friendly", "monokai"

html_theme = "furo"
html_title = f"wardround {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = html_show_sphinx = False
html_show_copyright = html_show_search_summary = False

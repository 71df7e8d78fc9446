import shutil
import sys
from pathlib import Path

from sphinx.util.inspect import TypeAliasForwardRef

import attsvm

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
shutil.copytree(HERE.parent / "examples", HERE / "notebooks", dirs_exist_ok=True)

project = "attsvm"
author = "The attsvm developers"
copyright = "the attsvm developers, Apache-2.0"
version = release = attsvm.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "pictures",
    "formulas",
    "explored",
    "accessible",
    "gallery",
    "laboratory",
    "entries",
]
smartquotes_action = "qe"  # two hyphens begin an option, and are no dash
html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the tests run the notebooks
nb_merge_streams = True
html_theme = "furo"
html_title = "attsvm"
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    **dict.fromkeys(("FloatArray", "IntArray", "BoolArray"), "~numpy.ndarray"),
    "ArrayLike": "~numpy.typing.ArrayLike",
}
# Sphinx 9.0 shows its own class for an alias in a union
setattr(TypeAliasForwardRef, "__repr__", lambda alias: alias.name)  # noqa: B010
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_use_ivar = True

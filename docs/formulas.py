"""Sphinx extension: formulas as MathML, written into the pages while they are built.

Every browser of today draws MathML by itself, so a page needs neither a network nor a script to be
read.
"""

from __future__ import annotations

import html
import re
from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)


def mathml(tex: str, display: str) -> str:
    """The element of a formula; its source is its label for those who do not see it.

    Raises:
        ValueError: a command that the converter does not know.
    """
    source = " ".join(tex.split())
    known = re.sub(r"\\arg(?![a-z])", r"\\operatorname{arg}", source)
    if r"\\" in known and r"\begin" not in known:
        known = rf"\begin{{align*}}{known}\end{{align*}}"  # the converter has no aligned
    element = str(latex2mathml.converter.convert(known, display=display))
    if "<mi>\\" in element or "<mo>\\" in element:
        raise ValueError("a command is unknown")
    label = html.escape(source, quote=True)
    return element.replace("<math ", f'<math alttext="{label}" ', 1)


def converted(node: nodes.math | nodes.math_block, display: str) -> str:
    try:
        return mathml(node.astext(), display)
    except Exception as error:  # of the converter: whatever it is, the page must not go without
        LOGGER.warning("a formula has no MathML: %s (%s)", node.astext(), error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def visit_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(converted(node, "inline"))
    raise nodes.SkipNode


def visit_display(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula" tabindex="0">{converted(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

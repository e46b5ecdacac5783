"""Drawings become part of the page.

As a file, a drawing follows the reader's system between light and dark. In the page it follows the page, whose
reader may have chosen the other one; then the site's style sheet colours it.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

FOLDER = "concepts/images/"


def put_in(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Each drawing of the concepts, in place of the link to its file."""
    if app.builder.format != "html":
        return
    for image in list(tree.findall(nodes.image)):
        if FOLDER in image["uri"]:
            text = (Path(app.srcdir) / image["uri"]).read_text()
            image.replace_self(nodes.raw("", inline(text, image["alt"]), format="html"))


def inline(text: str, words: str) -> str:
    """The drawing without its own colours, with its content in words for those who do not see it."""
    text = re.sub(r"<style>.*?</style>|<title>.*?</title>", "", text, flags=re.DOTALL)
    words = words.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    text = text.replace("<svg ", f'<svg class="drawing" role="img" aria-label="{words}" ', 1)
    return f'<div class="drawing-wrapper">{text}</div>'

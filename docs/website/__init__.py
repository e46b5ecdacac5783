"""What the site has beside its pages: the reference from code, drawings in the page, links out of docs/."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from website import commands, drawings, settings

# A page holds `<!-- generated: NAME -->` where the text from the code goes.
GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands.reference,
    "names": settings.names,
    "settings": settings.reference,
}
# Files of the root that are pages of the site too, by the page that shows them.
ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changes.md",
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect everything; Sphinx calls this."""
    app.connect("source-read", complete_source)
    app.connect("include-read", complete_included)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("doctree-resolved", drawings.put_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def complete_source(app: Sphinx, page: str, content: list[str]) -> None:
    """Fill in what comes from the code, and lead links to files of the root to their pages."""
    text = re.sub(r"<!-- generated: (\w+) -->", lambda found: GENERATED[found[1]](), content[0])
    content[0] = within_the_site(in_one_line(text))


def complete_included(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """The same links in a file of the root that a page includes; `docs/` is the site's root."""
    content[0] = within_the_site(content[0]).replace("](docs/", "](/")


def in_one_line(text: str) -> str:
    """Numbers of tables with their deviation, which a narrow column would break: 1.2 +- 0.3."""
    pieces = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        piece if piece.startswith("```") else re.sub(r"(?<=\d) \+- (?=\d)", "\u00a0±\u00a0", piece)
        for piece in pieces
    )


def within_the_site(text: str) -> str:
    """Links to the files of the root, as links to the pages that show them."""
    for name, page in ROOT_PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)*{re.escape(name)}(?=[)#])", f"](/{page}", text)
    return text


def as_restructured_text(
    app: Sphinx, kind: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Docstrings are plain English: names in single backticks, examples indented below a colon."""
    text = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", "\n".join(lines))
    text = re.sub(r"(?<!:):\n\n(?=    )", "::\n\n", text)
    text = re.sub(r"(?<![`\w*])\*{1,2}(?=\w)", lambda found: re.escape(found[0]), text)
    text = re.sub(
        r"(?<![`\\\w])(\w*[a-zA-Z0-9])_(?![\w`])", r"\1\\_", text
    )  # scikit-learn's names, as classes_
    lines[:] = text.split("\n")

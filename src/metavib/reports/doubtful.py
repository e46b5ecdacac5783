"""A page of the images that a model doubts most, in one file that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image

from metavib.core.foreign_text import visible
from metavib.serving.forecast import Doubtful

STYLE = (
    "body{font:16px/1.4 system-ui,sans-serif;margin:2rem;max-width:70rem}ul{display:grid;padding:0;"
    "list-style:none;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr))}"
    "li{overflow-wrap:anywhere}img{width:8rem;height:8rem;object-fit:contain;image-rendering:pixelated;"
    "background:#eee}"
)


def page_of(title: str, summary: str, images: Sequence[Doubtful]) -> str:
    """HTML; names of files are text in it, whatever they are."""
    items = "\n".join(_item(one) for one in images)
    head = (
        "<meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{_text(title)}</title><style>{STYLE}</style>"
    )
    return (
        f"<!doctype html>\n<html lang=en>{head}\n<h1>{_text(title)}</h1>\n<p>{_text(summary)}</p>\n"
        f"<h2>The most doubtful images</h2>\n<ul>\n{items}\n</ul>\n</html>\n"
    )


def _item(one: Doubtful) -> str:
    flag = " <strong>foreign</strong>" if one.foreign else ""
    picture = f"<img alt='' src='data:image/png;base64,{_png(one.pixels)}'>"
    said = f"{_text(one.label)} {100 * one.probability:.0f} %{flag}"
    return f"<li>{picture}<br>{said}<br><small>{_text(one.name)}</small></li>"


def _png(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _text(text: str) -> str:
    return escape(visible(text))

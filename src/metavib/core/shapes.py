"""Shapes as types: `Float[Tensor, "batch dim"]`.

They are read by people, and checked by jaxtyping and beartype when the tests run (`tests/conftest.py`).
jaxtyping is a development dependency: without it the names below are never evaluated, because every
module that uses them postpones its annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Num, UInt8

    Images = Float[Tensor, "batch channels height width"]
else:
    try:
        from jaxtyping import Bool, Float, Int, Num, UInt8

        Images = Float[Tensor, "batch channels height width"]
    except ModuleNotFoundError:
        Bool = Float = Int = Num = UInt8 = Images = None

__all__ = ["Bool", "Float", "Images", "Int", "Num", "UInt8"]

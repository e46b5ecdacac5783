"""Pre-trained weights of a backbone: torchvision's, or those of a file. No file is ever executed."""

from __future__ import annotations

import io
import pickle
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from metavib.core import untrusted
from metavib.core.errors import UserError
from metavib.nn.backbone import Backbone, Wrapped
from metavib.nn.probing import quiet

_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
MOST_BYTES = 4 << 30  # of a file of weights
NAMED = ("imagenet", "pretrained")  # weights that are published: of our own networks, and of a library's
_SHOWN = 5  # differing keys in an error: enough to see what kind of network the file holds


def load_weights(backbone: Backbone, source: str) -> None:
    """Load "none" (nothing), "imagenet" or "pretrained" (what is published), or a file; its head is left out."""
    if source == "none":
        return
    backbone.freeze_normalisation()
    state = _published_state(backbone, source) if source in NAMED else _file_state(source)
    layers, published = backbone.layers, backbone.published if isinstance(backbone, Wrapped) else None
    if published is not None and source not in NAMED:
        state = published.fitted(state, layers)
    own = layers.state_dict()
    ignored = tuple(
        key
        for key in state
        if key not in own and (key.startswith(backbone.head_keys) or key.endswith(".num_batches_tracked"))
    )
    state = {key: value for key, value in state.items() if key not in ignored}
    _require_same_layout(layers, state, source, published.layout if published else "torchvision's")
    state = {key: value.to(own[key].dtype) for key, value in state.items()}
    for key, value in state.items():
        if not value.isfinite().all():
            raise UserError(
                f"weights {source!r}: {key} has values that are not finite; give a file of a network that "
                "was trained without diverging."
            )
    layers.load_state_dict(state)


def _published_state(backbone: Backbone, source: str) -> dict[str, Any]:
    if not isinstance(backbone, Wrapped):
        return _imagenet_state(backbone)
    if backbone.published is None:
        raise UserError(
            f"nobody publishes weights of a network of your own: let its function load them, or give a file "
            f"instead of --weights {source}."
        )
    if source == "imagenet":
        raise UserError("--weights imagenet is for our own networks: give --weights pretrained.")
    return backbone.published.state()


def _imagenet_state(backbone: Backbone) -> dict[str, Tensor]:
    name = type(backbone).__name__
    if backbone.imagenet_weights is None and backbone.weight_files:
        raise UserError(
            f"the ImageNet weights of {name} are not in the data folder: put them there as "
            f"weights/{backbone.weight_files[0]}-imagenet.safetensors, or give a file with --weights FILE."
        )
    if backbone.imagenet_weights is None:
        raise UserError(
            f"torchvision has no ImageNet weights for {name}; give a file with --weights FILE, "
            "or train from scratch with --weights none."
        )
    from torchvision import models

    weights = models.get_weight(backbone.imagenet_weights)
    try:
        with quiet():  # torch prints on stdout that it downloads
            return weights.get_state_dict(
                progress=False, check_hash=True, map_location="cpu", weights_only=True
            )
    # No network, a broken download or a damaged file in torch's cache.
    except (OSError, HTTPException, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(
            f"the ImageNet weights of {name} could not be had from {weights.url}; "
            "download them elsewhere and give the file with --weights FILE, or begin without any: --weights none."
        ) from error


def _file_state(source: str) -> dict[str, Any]:
    """The state dict of a file, out of its wrappers; its values are not checked yet."""
    path = Path(source).expanduser()
    if not path.exists():
        raise UserError(
            f"weights {source!r}: no such file; give 'none', 'imagenet', 'pretrained' or a file "
            f"({', '.join(_SUFFIXES)})."
        )
    if not path.is_file() or path.suffix.lower() not in _SUFFIXES:
        raise UserError(
            f"weights {source!r}: not a file of weights; give one that ends in {', '.join(_SUFFIXES)}."
        )
    try:
        content = untrusted.read(path, MOST_BYTES)
    except OSError as error:
        raise UserError(f"weights {source!r}: cannot be read ({error}); give another file.") from error
    if path.suffix.lower() != ".safetensors":
        return _from_torch(path, content)
    try:
        return load(content)
    except SafetensorError as error:
        raise UserError(
            f"weights {str(path)!r}: cannot be read as safetensors ({error}); "
            "copy or download the file again."
        ) from error


def _from_torch(path: Path, content: bytes) -> dict[str, Any]:
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged pickle raises almost anything
        # torch's own message is left out: it tells how to load the file by running its code.
        raise UserError(
            f"weights {str(path)!r}: not a plain state dict: damaged, or a pickle that would run code, which "
            "is never done here; save one with torch.save(model.state_dict(), FILE)."
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise UserError(
            f"weights {str(path)!r}: holds {type(state).__name__}, not a state dict of named tensors; "
            "save one with torch.save(model.state_dict(), FILE)."
        )
    return {key.removeprefix("module."): value for key, value in state.items()}  # DataParallel's prefix


def _require_same_layout(layers: nn.Module, state: dict[str, Any], source: str, layout: str) -> None:
    expected = {key: _layout(value) for key, value in layers.state_dict().items()}
    found = {key: _layout(value) for key, value in state.items()}
    differing = [key for key in expected | found if expected.get(key) != found.get(key)]
    if not differing:
        return
    shown = "; ".join(
        f"{key}: {found.get(key, 'nothing')} in the file, {expected.get(key, 'nothing')} in the network"
        for key in differing[:_SHOWN]
    )
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    raise UserError(
        f"weights {source!r} do not fit {type(layers).__name__}: {shown}{more}. Give the weights of this "
        f"network in {layout} layout, or choose the backbone that they belong to."
    )


def _layout(value: Any) -> str:
    """The shape of a tensor of floats; of anything else its type, for an error message."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    plain = value.is_floating_point() and value.layout == torch.strided
    return str(tuple(value.shape)) if plain else f"{value.dtype} {tuple(value.shape)}"

"""The kernels are translated to machine code of a Hopper GPU, which needs none here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.kernels

pytest.importorskip("triton", reason="Triton is not installed")

DIGITS = {"SIDE": 28, "CHANNELS": 32}
HALVED = {"SIDE": 14, "INPUTS": 32, "OUTPUTS": 32}
NUMBERS = dict.fromkeys(("smallest_crop", "flip", "widest", "colour", "grey_share"), "fp32")
PIXELS = {"HEIGHT": 227, "WIDTH": 227, "CHANNELS": 3, "MOVED": True, "BLOCK": 1024}
STORED = {"store": "*u8", "rows": "*i64", "draws": "*fp32", "partial": "*fp32"}
JOINED = {"ROWS": "i32", "WIDTH": "i32", "OFFSET": "i32"}
PARTS = {"CHANNELS": 96, "PADDED": 128, "BLOCK": 32}
STATE = ("parameters", "gradients", "first_moments", "second_moments", "rates", "scales", "held")

# Module, kernel, types of its arguments (T is bfloat16), constants.
KERNELS: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
    (
        "convolution",
        "_first_forward",
        {"images": "*T", "weights": "*T", "pooled": "*T", "places": "*i8", "N": "i32"},
        DIGITS | {"BLOCK": 64},
    ),
    (
        "convolution",
        "_first_backward",
        {"images": "*T", "gradients": "*T", "places": "*i8", "partial": "*fp32", "N": "i32", "blocks": "i32"},
        DIGITS | {"BLOCK": 128},
    ),
    (
        "convolution",
        "_convolve",
        {"inputs": "*T", "weights": "*T", "bias": "*T", "outputs": "*T", "N": "i32"},
        HALVED | {"BIASED": True, "BLOCK": 128},
    ),
    (
        "convolution",
        "_weight_gradient",
        {"inputs": "*T", "gradients": "*T", "partial": "*fp32", "N": "i32", "blocks": "i32"},
        HALVED | {"BLOCK": 32},
    ),
    (
        "pooling",
        "_pool",
        {"values": "*T", "pooled": "*T", "places": "*i8", "IMAGES": "i32"},
        {"SIDE": 14, "CHANNELS": 32, "BLOCK": 32},
    ),
    (
        "pooling",
        "_pool_backward",
        {"gradients": "*T", "places": "*i8", "scattered": "*T", "IMAGES": "i32"},
        {"SIDE": 14, "CHANNELS": 32, "BLOCK": 64},
    ),
    (
        "pooling",
        "_select_places",
        {"values": "*T", "places": "*i8", "selected": "*T", "IMAGES": "i32"},
        {"SIDE": 14, "CHANNELS": 32, "BLOCK": 64},
    ),
    (
        "activation",
        "_activate",
        {"maps": "*T", "bias": "*fp32", "activated": "*T", "joined": "*T"} | JOINED,
        PARTS | {"SELECTED": False},
    ),
    (
        "activation",
        "_activate",
        {"maps": "*T", "bias": "*fp32", "activated": "*T", "joined": "*T"} | JOINED,
        PARTS | {"SELECTED": True},
    ),
    (
        "activation",
        "_activate_backward",
        {"gradients": "*T", "joined": "*T", "scattered": "*T", "partial": "*fp32", "BLOCKS": "i32"} | JOINED,
        PARTS,
    ),
    (
        "activation",
        "_activate_pooled",
        {"maps": "*T", "bias": "*fp32", "joined": "*T", "places": "*i8"} | JOINED,
        PARTS | {"SIDE": 109, "HALF": 54},
    ),
    (
        "activation",
        "_activate_pooled_backward",
        {"gradients": "*T", "places": "*i8", "scattered": "*T", "partial": "*fp32", "BLOCKS": "i32"} | JOINED,
        PARTS | {"SIDE": 109, "HALF": 54},
    ),
    (
        "activation",
        "_select_pooled",
        {"maps": "*T", "bias": "*fp32", "places": "*i8", "joined": "*T"} | JOINED,
        PARTS | {"SIDE": 109, "HALF": 54},
    ),
    (
        "randomness",
        "_normal",
        {"keys": "*i64", "draws": "*fp32", "COUNT": "i32", "HALF": "i32"},
        {"BLOCK": 512},
    ),
    (
        "adam",
        "_adam",
        dict.fromkeys(STATE, "*fp32")
        | {"step": "*i64", "SIZE": "i32"}
        | dict.fromkeys(("weight_decay", "beta_1", "beta_2", "epsilon"), "fp32"),
        {"BLOCK": 1024},
    ),
    ("images", "_sum_grey", STORED | NUMBERS, PIXELS),
    (
        "images",
        "_prepare",
        STORED | NUMBERS | {"means": "*fp32", "deviations": "*fp32", "images": "*fp32", "PARTS": "i32"},
        PIXELS | {"COLOURED": True, "GREYED": True, "LOADED": 64},
    ),
]


def build_all() -> list[str]:
    """Build every kernel; called in a process of its own."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    built = []
    for module, name, types, constants in KERNELS:
        kernel = getattr(importlib.import_module(f"metavib.nn.kernels.{module}"), name)
        signature = {
            argument: types[argument].replace("T", "bf16") if argument in types else "constexpr"
            for argument in kernel.arg_names
        }
        known = {(kernel.arg_names.index(constant),): value for constant, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=known)
        code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
        built.append(f"{name} {len(code)}")
    return built


def launched() -> list[str]:
    """The kernels that there are, without the functions that only they call."""
    import importlib

    from triton.runtime.jit import JITFunction

    modules = [importlib.import_module(f"metavib.nn.kernels.{module}") for module, *_ in KERNELS]
    found = {
        name for module in modules for name, value in vars(module).items() if isinstance(value, JITFunction)
    }
    return sorted(
        found
        - {
            "_first_patch",
            "_sampled",
            "_place",
            "_between",
            "_factor",
            "_brightened",
            "_grey",
            "_window",
            "_put",
        }
    )


def test_every_kernel_can_be_built_for_a_hopper_gpu(tmp_path: Path) -> None:
    # Not in this process: other tests interpret the kernels here.
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    finished = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    built, found = json.loads(finished.stdout)
    assert all(int(line.split()[1]) > 1000 for line in built)
    assert sorted({line.split()[0] for line in built}) == found == sorted({name for _, name, *_ in KERNELS})


if __name__ == "__main__":
    print(json.dumps([build_all(), launched()]))

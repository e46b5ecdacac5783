"""The tree is the architecture: imports point one way, and the core needs little."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import metavib

ROOT = Path(metavib.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# A module imports from the lines above its own and from its own package, never from below or beside.
# A new module gets a place here.
LAYERS = [
    {"errors", "plain_values", "shapes", "foreign_text", "control_groups", "averaging", "class_accuracy"},
    {"standard_output"},
    {"terminal"},
    {"kernels", "untrusted"},
    {"settings", "randomness", "atomic", "metrics", "config_file", "device", "memory", "cores", "paper"},
    {"functional", "processes"},
    {"data", "networks"},
    {"algorithms"},
    {"optimization", "evaluate"},
    {"recipes", "information_recording", "selection", "calibration", "domainbed", "soundness"},
    {"experiment"},
    {"run_directory", "cells"},
    {"checkpoint", "model", "program"},
    {"preparation", "validation", "stacks"},
    {
        "trainer",
        "provenance",
        "model_card",
        "serving",
        "reports",
    },  # whoever serves or shows a model never imports a trainer
    {"run_checks", "expectation"},
    {"runner"},
    {"capacity", "array_training"},
    {"estimator"},
    {"grid", "bench"},
    {"reproduction", "cross_validation"},
    {"reproduction_formats", "sweep"},
    {"commands"},
    {"training_arguments"},
    {"arguments"},
    {"cli", "folder_training"},
    {"__main__"},
]
CORE_NEEDS = {"torch", "torchvision", "numpy", "PIL", "safetensors", "metavib"}


class Import(NamedTuple):
    """One imported module, and whether it is imported as soon as the file is."""

    module: str
    at_once: bool


def imports_of(path: Path) -> list[Import]:
    return list(_imports(ast.parse(path.read_text(encoding="utf-8")), at_once=True))


def _imports(node: ast.AST, *, at_once: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, at_once) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        names = (
            [f"metavib.{alias.name}" for alias in node.names] if node.module == "metavib" else [node.module]
        )
        yield from (Import(str(name), at_once) for name in names)
    inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    checked_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for child in ast.iter_child_nodes(node):
        lazy = inside or (checked_only and isinstance(node, ast.If) and child in node.body)
        yield from _imports(child, at_once=at_once and not lazy)


def unit_of(path: Path) -> str:
    """The package or module directly under metavib that the file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def layer_of(unit: str) -> int:
    found = [number for number, layer in enumerate(LAYERS) if unit in layer]
    assert len(found) == 1, f"{unit} has no place in LAYERS, or two"
    return found[0]


def test_every_module_has_one_place_and_every_place_a_module() -> None:
    units = {unit_of(path) for path in FILES} - {"__init__"}
    assert units == set().union(*LAYERS)
    assert sum(map(len, LAYERS)) == len(units)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = unit_of(path)
    if own == "__init__":
        assert not any(module.startswith("metavib") for module, at_once in imports_of(path) if at_once)
        return
    for module, _ in imports_of(path):
        package, _, rest = module.partition(".")
        unit = rest.partition(".")[0]
        if package == "metavib" and unit not in (own, "__version__"):
            assert layer_of(unit) < layer_of(own), f"{own} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_core_does_not_need_is_imported_where_it_is_used(path: Path) -> None:
    allowed = CORE_NEEDS | set(sys.stdlib_module_names)
    if path.name == "shapes.py":
        allowed |= {"jaxtyping"}  # in a try: without it shapes are not checked
    if path.parent.name == "kernels" and path.name != "__init__.py":
        allowed |= {"triton"}  # the modules are imported where `kernels.serve` said so
    if path.name == "estimator.py":
        allowed |= {"sklearn"}  # which it inherits from; `metavib.__getattr__` imports it on demand
    at_once = {module.partition(".")[0] for module, at_once in imports_of(path) if at_once}
    assert at_once <= allowed


def test_what_the_terminal_yaml_and_the_digits_need_is_found_by_these_tests() -> None:
    lazy = {module.partition(".")[0] for path in FILES for module, at_once in imports_of(path) if not at_once}
    assert {"rich", "ruamel", "sklearn"} <= lazy


def test_a_kernel_is_imported_only_where_it_is_used() -> None:
    for path in FILES:
        if path.parent.name != "kernels":
            assert not any(module.startswith("metavib.kernels.") for module, now in imports_of(path) if now)


def test_the_command_line_starts_without_torch() -> None:
    for unit in (
        "cli",
        "arguments",
        "errors",
        "memory",
        "terminal",
        "foreign_text",
        "standard_output",
        "__init__",
        "__main__",
    ):
        at_once = {module.partition(".")[0] for module, now in imports_of(ROOT / f"{unit}.py") if now}
        assert at_once <= set(sys.stdlib_module_names) | {"metavib"}


def test_functional_code_knows_no_parameters() -> None:
    for path in (ROOT / "functional").glob("*.py"):
        assert not any("nn" in module.split(".") for module, _ in imports_of(path))
        assert "Parameter(" not in path.read_text(encoding="utf-8")


def test_no_file_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "misc", "common", "helpers", "helper"}
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(ROOT).parts}
    assert not names & drawers


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_fits_in_350_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350


# --- one door -----------------------------------------------------------------------------------------------

READERS = {"read_text", "read_bytes", "open", "load_file", "safe_open", "memmap", "fromfile"}
# Calls by these names that open no file which somebody else may have made.
HARMLESS = {
    "standard_output.py": {
        "open(os.devnull, 'w', encoding='utf-8')",
        "open(os.devnull, encoding='utf-8')",
        "os.open(os.devnull, os.O_RDWR)",
        "os.open(os.devnull, os.O_WRONLY)",
    },
    "atomic.py": {"os.open(folder, os.O_RDONLY)"},  # a folder, to flush it
    "untrusted.py": {"os.open(path, flags | _WITHOUT_WAITING, 438)"},  # the door itself
    "cache.py": {
        "np.memmap(file, dtype=np.uint8, mode='r', shape=shape)",  # of a file that came through the door
        "(partial / 'pixels.bin').open('wb')",  # in a folder that was made a moment ago
    },
    "predictor.py": {"self.open(image)"},
    "streaming.py": {"predictor.open(name)"},
}


def opened_beside_the_door(path: Path) -> set[str]:
    """Calls in a file that read or open another one by its path, and not through `metavib.untrusted`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        text = ast.unparse(node)
        given = any(keyword.arg == "opener" for keyword in node.keywords)
        through_the_door = given or text.startswith("untrusted.")
        of_the_package, in_memory = "files(" in text, "io.BytesIO" in text
        loads = text.startswith(("np.load(", "torch.load("))
        if (name in READERS or loads) and not (through_the_door or of_the_package or in_memory):
            found.add(text)
    return found - HARMLESS.get(path.name, set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_opened_through_the_one_door(path: Path) -> None:
    if path.name in ("memory.py", "cores.py", "control_groups.py") or path.parent.name == "bench":
        return  # what the kernel tells under /proc and /sys, and what a bench has made itself
    assert not opened_beside_the_door(path)


def test_other_ways_than_the_door_are_found(tmp_path: Path) -> None:
    ways = ["path.read_text()", "open(path)", "path.open('rb')", "np.load(path)", "torch.load(path)"]
    ways += ["safetensors.torch.load_file(path)", "np.memmap(path)"]
    (tmp_path / "module.py").write_text("\n".join([*ways, "open(path, opener=untrusted.opener)"]))
    assert opened_beside_the_door(tmp_path / "module.py") == {ast.unparse(ast.parse(way)) for way in ways}

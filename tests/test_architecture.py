"""The tree is the architecture: imports point one way, and the core needs little."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import metavib
from metavib.interfaces.cli.commands import COMMANDS

ROOT = Path(metavib.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# A folder is a stage. It imports from itself and from the stages before it, never from a later one.
LAYERS = [
    "core",
    "nn",
    "data",
    "algorithms",
    "models",
    "training",
    "runs",
    "serving",
    "reports",
    "interfaces",
    "__main__",
]
# Whoever serves a model needs no trainer.
APART = {"serving": {"training", "runs"}}
CORE_NEEDS = {"torch", "torchvision", "numpy", "PIL", "safetensors", "metavib"}


class Import(NamedTuple):
    """One imported module, and whether it is imported as soon as the file is."""

    module: str
    at_once: bool


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports_of(path: Path) -> list[Import]:
    return list(_imports(tree_of(path), at_once=True))


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
    """The folder or module directly under metavib that the file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_the_tree_is_small_enough_to_be_known_by_heart() -> None:
    entries = {path.name for path in ROOT.iterdir()} - {"__pycache__"}
    assert len(entries) <= 12
    assert {name.removesuffix(".py") for name in entries} - {"__init__"} == set(LAYERS)
    assert len(set(LAYERS)) == len(LAYERS)


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
            assert LAYERS.index(unit) < LAYERS.index(own), f"{own} imports {module}"
            assert unit not in APART.get(own, ()), f"{own} imports {module}"


@functools.cache
def exported_by(package: Path) -> set[str]:
    """The names in `__all__` of a package; none where it has no such list."""
    for node in tree_of(package / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def names_taken(path: Path) -> Iterator[list[str]]:
    """Each name that a file imports from the package, from its stage on."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("metavib."):
            for alias in node.names:
                yield [*str(node.module).split(".")[1:], alias.name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_stages_take_from_one_another_what_is_exported(path: Path) -> None:
    for stage, *names in names_taken(path):
        if stage == unit_of(path):
            continue
        package = ROOT / stage
        for name in names:
            if not (package / "__init__.py").is_file():
                break
            said = f"{path.relative_to(ROOT)} takes {name} from {package.relative_to(ROOT)}"
            assert name in exported_by(package), f"{said}: add it to its __all__, if others may use it"
            package /= name


@pytest.mark.parametrize(
    "package", [path.parent for path in FILES if path.name == "__init__.py"], ids=lambda path: path.name
)
def test_what_a_package_exports_is_there(package: Path) -> None:
    for name in exported_by(package) if package != ROOT else ():  # what users import has tests of its own
        module = (package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file()
        place = ".".join(("metavib", *package.relative_to(ROOT).parts))
        assert module or hasattr(importlib.import_module(place), name)


def modules_needed(path: Path) -> set[str]:
    """All modules that a file imports, lazily too; `from package import module` is one of the module."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def cycles_in(root: Path, units: set[str]) -> list[str]:
    """The modules of these units that import each other, or stand between such."""
    needed = {
        ".".join(("metavib", *path.relative_to(root).with_suffix("").parts)): modules_needed(path)
        for path in root.rglob("*.py")
        if path.name != "__init__.py" and path.relative_to(root).parts[0] in units
    }
    while done := [name for name, modules in needed.items() if not (modules - {name}) & needed.keys()]:
        for name in done:
            del needed[name]
    return sorted(needed)


def test_no_modules_import_each_other_not_even_lazily(tmp_path: Path) -> None:
    assert cycles_in(ROOT, {*LAYERS}) == []
    (tmp_path / "nn").mkdir()
    (tmp_path / "nn" / "one.py").write_text("def use():\n    from metavib.nn import two\n")
    (tmp_path / "nn" / "two.py").write_text("import metavib.nn.one\n")
    (tmp_path / "nn" / "three.py").write_text("import math\n")
    assert cycles_in(tmp_path, {"nn"}) == ["metavib.nn.one", "metavib.nn.two"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_core_does_not_need_is_imported_where_it_is_used(path: Path) -> None:
    allowed = CORE_NEEDS | set(sys.stdlib_module_names)
    if path.name == "shapes.py":
        allowed |= {"jaxtyping"}  # in a try: without it shapes are not checked
    if path.parent.name == "kernels" and path.name != "__init__.py":
        allowed |= {"triton"}  # the modules are imported where `kernels.run_on` said so
    if path.name == "estimator.py":
        allowed |= {"sklearn"}  # which it inherits from; `metavib.__getattr__` imports it on demand
    at_once = {module.partition(".")[0] for module, at_once in imports_of(path) if at_once}
    assert at_once <= allowed


def test_what_the_terminal_yaml_and_the_digits_need_is_found_by_these_tests() -> None:
    lazy = {module.partition(".")[0] for path in FILES for module, at_once in imports_of(path) if not at_once}
    assert {"rich", "ruamel", "sklearn"} <= lazy


def test_a_kernel_is_imported_only_where_it_is_used() -> None:
    kernels = {
        f"metavib.nn.kernels.{path.stem}"
        for path in (ROOT / "nn" / "kernels").glob("*.py")
        if any(module.startswith("triton") for module, now in imports_of(path) if now)
    }
    assert len(kernels) >= 5
    for path in FILES:
        if f"metavib.nn.kernels.{path.stem}" not in kernels:
            assert not kernels & {module for module, now in imports_of(path) if now}, path


def test_the_command_line_starts_without_torch() -> None:
    light = ["__init__", "__main__", "interfaces/cli/main", "interfaces/cli/parsing", "interfaces/cli/flags"]
    light += ["core/errors", "core/memory", "core/terminal", "core/foreign_text", "core/standard_output"]
    light += [f"interfaces/cli/commands/{name}" for name in ("__init__", *COMMANDS)]
    for name in light:
        at_once = {module.partition(".")[0] for module, now in imports_of(ROOT / f"{name}.py") if now}
        assert at_once <= set(sys.stdlib_module_names) | {"metavib"}


@functools.cache
def modules_imported_by(path: Path) -> set[Path]:
    """The files of the package that a file imports, at once or later, by name."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            place = ROOT.parent / node.module.replace(".", "/")
            names = [place / alias.name for alias in node.names]
            found |= {name.with_suffix(".py") for name in names if name.with_suffix(".py").is_file()}
            found |= {place.with_suffix(".py")} if place.with_suffix(".py").is_file() else set()
    return found


@pytest.mark.parametrize("unit", ["core", "training", "runs", "interfaces"])
def test_no_cycle_is_hidden_by_an_import_inside_a_function(unit: str) -> None:
    left = {path: modules_imported_by(path) for path in FILES if unit_of(path) == unit}
    while free := [path for path, needed in left.items() if not needed & left.keys() - {path}]:
        left = {path: needed for path, needed in left.items() if path not in free}
    assert not left


def test_functional_code_knows_no_parameters() -> None:
    for path in (ROOT / "nn" / "functional").glob("*.py"):
        assert not any(module.startswith("torch.nn") for module, _ in imports_of(path))
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
    "feature_cache.py": {
        "np.memmap(file, dtype=np.float32, mode='r', shape=(*shape, 1, 1))",  # came through the door
    },
    "unpacking.py": {"tarfile.open(fileobj=file)", "opened.open(member)"},  # likewise, and what is in it
    "predictor.py": {"self.open(image)"},
    "streaming.py": {"predictor.open(name)"},
    "forecast.py": {"predictor.open(name)"},  # which goes through it
}


def opened_beside_the_door(path: Path) -> set[str]:
    """Calls in a file that read or open another one by its path, and not through `metavib.core.untrusted`."""
    found = set()
    for node in ast.walk(tree_of(path)):
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
    if path.name in ("memory.py", "cores.py", "control_groups.py"):
        return  # what the kernel tells under /proc and /sys
    assert not opened_beside_the_door(path)


def test_other_ways_than_the_door_are_found(tmp_path: Path) -> None:
    ways = ["path.read_text()", "open(path)", "path.open('rb')", "np.load(path)", "torch.load(path)"]
    ways += ["safetensors.torch.load_file(path)", "np.memmap(path)"]
    (tmp_path / "module.py").write_text("\n".join([*ways, "open(path, opener=untrusted.opener)"]))
    assert opened_beside_the_door(tmp_path / "module.py") == {ast.unparse(ast.parse(way)) for way in ways}

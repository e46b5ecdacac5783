"""The files of a packet on a machine that does not share the sweep's folder: brought there, and brought back.

A worker trains in a folder of its own. What changes there is sent to the driver, file by file, each whole: first
what makes the folder a run's; tensors and logs before the JSON of the checkpoint that needs them; results last.
"""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError
from metavib.core.memory import free_memory_of_host
from metavib.runs.cells import Cell
from metavib.training.run_directory import members_of, require_inside
from metavib.training.stacks import begun_beside

Files = dict[str, bytes | None]  # by their path below the sweep's folder; None for one that is gone


def files_of(root: Path, cells: Iterable[Cell]) -> dict[str, bytes]:
    """The files that a worker needs to go on with these cells: all but models, which it makes itself."""
    own = list(cells)
    identities = {cell.experiment.identity() for cell in own}
    folders = [cell.out for cell in own]
    for members in begun_beside(cell.out for cell in own):
        if identities & set(members_of(members)):
            folders.append(members.parent)
    return {
        path.relative_to(root).as_posix(): _content(path, root)
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if _counts(path) and path.parent.name != "model"
    }


def placed(root: Path, files: Files) -> None:
    """Write what came, and delete what is gone there; nothing outside of the folder."""
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise RuntimeError(f"a worker sent a file {name!r}, which is not below the sweep's folder")
        require_inside((root / name).parent, root)
    for name in sorted(files, key=_turn):
        content = files[name]
        if content is not None:
            atomic.write_bytes(root / name, content)
    for name in sorted(files, key=_turn, reverse=True):
        if files[name] is None:
            (root / name).unlink(missing_ok=True)


class Workspace:
    """A worker's own folder, which knows what the driver has of it."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder = folder
        placed(folder, dict(files))
        self.sent = {name: self._version(folder / name) for name in files}

    def changes(self) -> Files:
        """The files that are new, other or gone since the last call."""
        found: Files = {}
        there = {
            path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if _counts(path)
        }
        # Logs last: they must reach as far as the checkpoints that were seen before them.
        for name, path in sorted(there.items(), key=lambda item: item[1].suffix == ".jsonl"):
            try:
                version = self._version(path)
                if self.sent.get(name) != version:
                    found[name] = _content(path, self.folder)
                    self.sent[name] = version
            except FileNotFoundError:  # an old checkpoint, deleted while we looked
                continue
        for name in [name for name in self.sent if name not in there]:
            found[name] = None
            del self.sent[name]
        for name in [name for name in found if self._lacks_its_tensors(name)]:
            del found[name], self.sent[name]
        return found

    def _lacks_its_tensors(self, name: str) -> bool:
        """Whether this is the JSON of a checkpoint whose tensors were deleted before they could be read."""
        path = PurePosixPath(name)
        is_checkpoint = path.suffix == ".json" and path.stem.isdigit() and name in self.sent
        return is_checkpoint and str(path.with_suffix(".safetensors")) not in self.sent

    @staticmethod
    def _version(path: Path) -> tuple[int, int, int]:
        state = path.stat()
        return state.st_ino, state.st_size, state.st_mtime_ns


def _content(path: Path, root: Path) -> bytes:
    try:
        return untrusted.read(path, free_memory_of_host(), root)
    except untrusted.DoorError as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def _counts(path: Path) -> bool:
    """Whether this is a file of a run, and neither a lock nor a half-written one."""
    return not path.name.startswith(".") and path.is_file()


def _turn(name: str) -> tuple[int, str]:
    """When a file is written: whatever is killed in between, what is there by then is a run that can go on."""
    path = PurePosixPath(name)
    if path.name in ("experiment.json", "members.json"):  # without it, a folder with files belongs to no run
        return 0, name
    if path.name in ("results.json", "validation.json"):
        return 3, name
    # A checkpoint's JSON makes its tensors count, and the log up to its step.
    return (1 if path.suffix in (".safetensors", ".jsonl") else 2), name

"""The processes of a run, seen from one of them, and what they tell each other."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from metavib.core.processes.division import Division
from metavib.core.processes.watch import Watch

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is. The first one decides, writes and speaks; a run alone is a first one.

    All processes call the same methods in the same order.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes of this machine
    watch: Watch | None = None

    @property
    def first(self) -> bool:
        """Whether this is the process that decides, writes and speaks."""
        return self.rank == 0

    def division(self, samples: int, *, whole_images: bool = False) -> Division | None:
        """How so many samples of each domain are divided; None where there is one process."""
        return Division(self.rank, self.size, samples, whole_images) if self.size > 1 else None

    def asked_to_stop(self) -> bool:
        """Whether Ctrl-C, torchrun or a scheduler asked this one of several processes to stop."""
        return self.watch is not None and self.watch.asked_to_stop

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether some process says so, for each of the flags."""
        if self.size == 1:
            return flags
        said = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(said, op=dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in said.tolist())

    def wait(self) -> None:
        """Go on when every process has come here."""
        self.any(False)

    @contextlib.contextmanager
    def machine_by_machine(self) -> Iterator[None]:
        """The first process of each machine goes first, so that what it leaves on the disk serves the others."""
        if self.local_rank > 0:
            self.wait()
        yield
        if self.local_rank == 0:
            self.wait()

    def from_first(self, make: Callable[[], T]) -> T:
        """Return in every process what `make` gives in the first one: a value that JSON can hold."""
        if self.size == 1:
            return make()
        content = json.dumps(make()).encode() if self.first else b""
        length = torch.tensor(len(content))
        dist.broadcast(length, 0)
        text = torch.frombuffer(bytearray(content), dtype=torch.uint8) if self.first else None
        if text is None:
            text = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(text, 0)
        return json.loads(text.numpy().tobytes())

    def tensors_from_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first process's tensors, which lie on the host, in every process; what others give is not read."""
        if self.size == 1:
            return dict(tensors)
        described: Any = self.from_first(
            lambda: [[name, str(own.dtype), list(own.shape)] for name, own in tensors.items()]
        )
        found = {}
        for name, dtype, shape in described:
            kind = getattr(torch, dtype.removeprefix("torch."))
            found[name] = tensors[name].contiguous() if self.first else torch.empty(shape, dtype=kind)
            dist.broadcast(found[name], 0)
        return found

    def as_first(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The first process's values of tensors that all have alike, but for rounding; in one message."""
        if self.size == 1 or not values:
            return list(values)
        flat = torch.cat([value.reshape(-1) for value in values])
        dist.broadcast(flat, 0)
        parts = flat.split([value.numel() for value in values])
        return [part.view(value.shape).to(value.dtype) for part, value in zip(parts, values, strict=True)]


ALONE = Processes()

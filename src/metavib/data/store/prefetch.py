"""Images that do not fit on the device, read ahead from their files by a thread."""

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from metavib.core.memory import free_memory_of_host, give_back_if_short
from metavib.data.episodes import Drawn, EpisodeSampler

AHEAD = 3  # episodes that are read while one is trained on, where memory is not short
SHARE_OF_FREE_MEMORY = 0.25  # what they may take


class Prefetcher:
    """The drawn images of step after step, in page-locked memory where a GPU takes them from."""

    def __init__(self, sampler: EpisodeSampler, first_step: int, steps: int) -> None:
        self.sampler, self.steps = sampler, steps
        self.next_step = first_step
        self.locked = sampler.device.type == "cuda"
        self.ahead = _ahead(sampler.bytes_a_step)
        self.buffers: list[torch.Tensor | None] = [None] * (self.ahead + 2)
        self.sending: list[torch.cuda.Event | None] = [None] * (self.ahead + 2)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="metavib-images")
        self.waiting: dict[int, Future[Drawn]] = {}

    def next(self) -> Drawn:
        """The images of the next step."""
        give_back_if_short()
        for step in range(self.next_step, min(self.next_step + self.ahead + 1, self.steps)):
            if step not in self.waiting:
                self.waiting[step] = self.pool.submit(self._read, step)
        drawn = self.waiting.pop(self.next_step).result()
        self.next_step += 1
        return drawn

    def sent(self) -> None:
        """The copy of the images that `next` gave to the device has begun; their memory is free when it ends."""
        if self.locked:
            event = torch.cuda.Event()
            event.record()
            self.sending[(self.next_step - 1) % len(self.buffers)] = event

    def _read(self, step: int) -> Drawn:
        place = step % len(self.buffers)
        event = self.sending[place]
        if event is not None:
            event.synchronize()
        drawn = self.sampler.drawn(step, self.buffers[place])
        if self.buffers[place] is None and self.locked:
            drawn = Drawn(drawn.pixels.pin_memory(), *drawn[1:])
        self.buffers[place] = drawn.pixels
        return drawn


def _ahead(bytes_a_step: int) -> int:
    """How many episodes there is room for, beside the one that is trained on and the one whose copy goes on."""
    room = int(SHARE_OF_FREE_MEMORY * free_memory_of_host() / max(1, bytes_a_step)) - 2
    return max(1, min(AHEAD, room))

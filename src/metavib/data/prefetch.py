"""Images that do not fit on the device, read ahead from their memory maps by a thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from metavib.data.episodes import Drawn, EpisodeSampler

AHEAD = 3  # episodes that are read while one is trained on


class Prefetcher:
    """The drawn images of step after step, in page-locked memory where a GPU takes them from."""

    def __init__(self, sampler: EpisodeSampler, first_step: int, steps: int) -> None:
        self.sampler, self.steps = sampler, steps
        self.next_step = first_step
        self.locked = sampler.device.type == "cuda"
        self.buffers: list[torch.Tensor | None] = [None] * (AHEAD + 2)
        self.sending: list[torch.cuda.Event | None] = [None] * (AHEAD + 2)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="metavib-images")
        self.waiting: dict[int, Future[Drawn]] = {}

    def next(self) -> Drawn:
        """The images of the next step."""
        for step in range(self.next_step, min(self.next_step + AHEAD + 1, self.steps)):
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

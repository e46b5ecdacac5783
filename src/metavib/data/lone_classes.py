"""Classes that one source domain alone has, and how an episode shares their images out.

A method that divides an episode's domains learns a class where several of them have it: one gives the context, the
other the question. A class that no second domain has would never be asked for with its own kind on the other side.
So its images are lent to the other domains of the episode, as if they were their own, and dealt out, so that no
image is in two domains at once: each of them can be the question, and others of the same class the context.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from metavib.core.shapes import Int

NAMED = 5  # classes by name in a line; of more, how many


def warnings_of(owners: Mapping[str, str]) -> list[str]:
    """Warnings about the lone classes of a run, a line for each domain that has some."""
    by_domain: dict[str, list[str]] = {}
    for name, domain in owners.items():
        by_domain.setdefault(domain, []).append(name)
    lines = []
    for domain, names in by_domain.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        listed = ", ".join(map(repr, names[:NAMED])) + more
        which, them = (f"class {listed} is", "it") if len(names) == 1 else (f"classes {listed} are", "them")
        lines.append(
            f"{which} in one source domain alone, {domain!r}: what is learnt of {them} comes from there, so "
            f"expect lower accuracy on {them} in a new domain."
        )
    return lines


class LoneClasses:
    """The lone classes of one run or of many stacked ones. All tables lie where the draws of episodes do."""

    def __init__(
        self, counts: Int[Tensor, "runs domains classes"], starts: Int[Tensor, "runs domains classes"]
    ) -> None:
        """`counts` and `starts` say how many images a class of a domain has, and the position of the first."""
        there = counts > 0
        self.counts, self.starts = counts, starts
        self.lone = there.sum(dim=1) == 1  # by run and class
        self.owners = there.int().argmax(dim=1)  # the domain that has the class, where it is lone
        of_lone = counts * self.lone.unsqueeze(1)
        self.owned = of_lone.sum(dim=2)  # images of lone classes, by run and domain
        total = self.owned.sum(dim=1, keepdim=True)
        self.lent = total - self.owned  # what the other domains lend to each
        # The positions of all images of lone classes: run after run, in each domain after domain.
        firsts, lengths = starts[of_lone > 0], of_lone[of_lone > 0]
        ends = lengths.cumsum(0)
        self.positions = (firsts - ends + lengths).repeat_interleave(lengths) + torch.arange(
            int(lengths.sum()), device=counts.device
        )
        self.first_of_run = total.cumsum(0) - total
        self.first_of_domain = self.owned.cumsum(1) - self.owned

    def __bool__(self) -> bool:
        return len(self.positions) > 0

    def giver(
        self,
        runs: Int[Tensor, "runs 1 1"],
        domains: Int[Tensor, "runs domains 1"],
        asked: Int[Tensor, "runs domains samples"],
    ) -> Int[Tensor, "runs domains samples"]:
        """The domain that gives an image of the class that is asked for: of a lone class its owner."""
        return torch.where(self.lone[runs, asked], self.owners[runs, asked], domains)

    def lent_position(
        self,
        runs: Int[Tensor, "runs 1 1"],
        domains: Int[Tensor, "runs domains 1"],
        number: Int[Tensor, "runs domains samples"],
    ) -> Int[Tensor, "runs domains samples"]:
        """The position of the `number`-th image that is lent to a domain, which is none of its own."""
        number = number.clamp_min(0)
        number = torch.where(
            number >= self.first_of_domain[runs, domains], number + self.owned[runs, domains], number
        )
        place = (self.first_of_run[runs, 0] + number).clamp_max(len(self.positions) - 1)
        return self.positions[place]

    def dealt(
        self,
        runs: Int[Tensor, "runs 1 1"],
        position: Int[Tensor, "runs domains samples"],
        label: Int[Tensor, "runs domains samples"],
        step: int | Int[Tensor, ""],
    ) -> Int[Tensor, "runs domains samples"]:
        """The draw with the images of lone classes dealt out: image i of a class to row (i - step) mod rows.

        A class of fewer images than rows is shared by some of them.
        """
        rows = position.shape[1]
        of_class = (runs, self.owners[runs, label], label)
        start, count = self.starts[of_class], self.counts[of_class]
        within = position - start
        row = torch.arange(rows, device=position.device).view(1, -1, 1)
        within = within - within % rows + (row + step) % rows
        within = torch.where(within < count, within, within - rows)
        return torch.where(self.lone[runs, label] & (within >= 0), start + within, position)

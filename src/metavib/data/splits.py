"""Which images train, which choose the model, and which are the unseen domain. Opens no image."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metavib.core.errors import UserError, require_known, unknown_name
from metavib.data.dataset import Dataset, Listing
from metavib.nn.randomness import key_of, permutation


@dataclass(frozen=True)
class Split:
    """Roles of images, as positions in the listings of their domains."""

    train: dict[str, tuple[int, ...]]  # by source domain
    validation: dict[str, tuple[int, ...]]  # by source domain
    target: str | None  # None where nothing is held out
    tested: tuple[int, ...]  # the target's "test" part, or all of it where it has none
    classes: tuple[str, ...]  # of all training images, in `natural_order`

    @property
    def in_words(self) -> str:
        """The held-out domain, in words."""
        if self.target is None:
            return f"trained on all {len(self.train)} domains and nothing held out"
        return f"{self.target!r} unseen"

    def lone_classes(self, dataset: Dataset) -> dict[str, str]:
        """The classes that the training images of one source domain alone have, with that domain."""
        homes: dict[str, list[str]] = {name: [] for name in self.classes}
        for domain, positions in self.train.items():
            names = dataset.listing(domain).classes
            for name in {names[position] for position in positions}:
                homes[name].append(domain)
        return {name: domains[0] for name, domains in homes.items() if len(domains) == 1}

    def digest(self, dataset: Dataset) -> str:
        """16 hex digits of who plays which role, whatever the order."""
        roles = [("train", self.train), ("validation", self.validation)]
        if self.target is not None:
            roles.append(("tested", {self.target: self.tested}))
        lines = []
        for role, members in roles:
            for domain, positions in members.items():
                names = dataset.listing(domain).names
                lines += [f"{role}\0{domain}\0{names[position]}" for position in positions]
        return hashlib.blake2b("\n".join(sorted(lines)).encode(), digest_size=8).hexdigest()


def split_domains(
    dataset: Dataset,
    target: str | None,
    *,
    seed: int,
    validation_share: float,
    without: Sequence[str] = (),
    least_sources: int = 2,
) -> Split:
    """One domain is the target, the others are sources, divided into training and validation images.

    Without a target (None) all domains are sources. The domains in `without` play no part. `least_sources` is
    how many source domains the method needs.
    """
    if target is not None and target not in dataset.domains:
        raise unknown_name("target domain", target, dataset.domains)
    for domain in without:
        require_known("domain to leave out", domain, dataset.domains)
    domains = [domain for domain in dataset.domains if domain not in without]
    if target is not None and target not in domains:
        raise UserError(f"{target!r} cannot be the target and left out altogether")
    if len(domains) - (target is not None) < least_sources:
        raise UserError(_too_few(dataset.name, domains, target, least_sources, left=bool(without)))
    if not 0 <= validation_share < 1:
        raise UserError(f"the validation share is {validation_share}; choose one from 0 to below 1")
    train, validation = {}, {}
    trained: set[str] = set()
    validated: set[str] = set()
    for domain in domains:
        if domain != target:
            listing = dataset.listing(domain)
            train[domain], validation[domain] = _divide(listing, seed, validation_share)
            trained |= {listing.classes[position] for position in train[domain]}
            validated |= {listing.classes[position] for position in validation[domain]}
    tested: tuple[int, ...] = ()
    wanted = validated
    if target is not None:
        goal = dataset.listing(target)
        tested = _of_part(goal, "test") or tuple(range(len(goal.names)))
        wanted = validated | {goal.classes[position] for position in tested}
    if unseen := sorted(wanted - trained, key=natural_order):
        who = "" if target is None else f"target {target!r} or "
        raise UserError(
            f"no source domain has training images of {', '.join(unseen)}, which {who}the validation images "
            "have; add some, or remove the class"
        )
    return Split(train, validation, target, tested, tuple(sorted(trained, key=natural_order)))


def _too_few(name: str, domains: Sequence[str], target: str | None, least: int, *, left: bool) -> str:
    """The text of the error for too few domains, with what could be trained instead."""
    text = f"{name} has {len(domains)} domain(s){' left' if left else ''}: {', '.join(domains)}; "
    sources = "1 source domain" if least == 1 else f"{least} source domains"
    if target is None:
        text += f"at least {sources} are needed for this algorithm, so add images from another source"
        return text + (", or use --algorithm erm, which learns from one" if least > 1 and domains else "")
    text += f"at least {sources} and a target are needed, so add images from another source"
    return text + (f", or train on all {len(domains)} with --target none" if len(domains) >= least else "")


def separate(digests_kept: Iterable[str], candidates: Sequence[str]) -> tuple[int, ...]:
    """Positions of the candidates that are not byte-identical to one of the kept images."""
    kept = set(digests_kept)
    return tuple(position for position, digest in enumerate(candidates) if digest not in kept)


def natural_order(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts "2" before "10"."""
    pieces = re.split("([0-9]+)", name)  # text, number, text, ...
    numbers = [(len(digits.lstrip("0")), digits.lstrip("0")) for digits in pieces[1::2]]
    texts = [(0, text) for text in pieces[::2]]
    alternating = [piece for pair in zip(texts, [*numbers, (0, name)], strict=True) for piece in pair]
    return tuple(alternating)


def _divide(listing: Listing, seed: int, share: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Training and validation positions of a source domain: its official parts, else by class at random."""
    candidates = _of_part(listing, "train") or _of_part(listing, "")
    if not candidates:
        raise UserError(f"domain {listing.domain!r} has no training part; make it the target, or add one")
    official = _of_part(listing, "crossval")
    if share == 0 or official:
        return candidates, official if share else ()
    by_class: dict[str, list[int]] = {}
    for position in candidates:
        by_class.setdefault(listing.classes[position], []).append(position)
    held_out: set[int] = set()
    for label, members in by_class.items():
        # At least one to validate and one to train with, where there are two.
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        order = permutation(key_of(seed, "split", listing.domain, label), len(members)).tolist()
        held_out.update(members[place] for place in order[: max(count, 0)])
    return tuple(place for place in candidates if place not in held_out), tuple(sorted(held_out))


def _of_part(listing: Listing, part: str) -> tuple[int, ...]:
    return tuple(position for position, own in enumerate(listing.parts) if part in own.split(" and "))

"""Digits-DG (Zhou et al., "Deep domain-adversarial image generation for domain generalisation", AAAI 2020)."""

from __future__ import annotations

from pathlib import Path

from metavib.data.dataset import Dataset
from metavib.data.file_dataset import PARTS, FileDataset
from metavib.data.sources.published import home_of, missing, require_classes, scan_domain

DOMAINS = ("mnist", "mnist_m", "svhn", "syn")
NAMES = ("digits-dg", "digits_dg")


def open_digits_dg(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """MNIST, MNIST-M, SVHN and synthetic digits, 600 of each class and domain.

    Its parts: train on `train`, choose by `val`, and test on all images of the unseen domain.
    """
    home = home_of(root, NAMES, ("", "digits_dg"), [f"{domain}/train" for domain in DOMAINS])
    if home is None:
        expected = f"{root}/digits-dg/<domain>/{{train,val}}/<0..9>/* with the domains {', '.join(DOMAINS)}"
        raise missing("digits-dg", "Digits-DG", root, expected)
    files, ignored = {}, []
    for domain in DOMAINS:
        files[domain], others = scan_domain(home, domain, PARTS, "Digits-DG")
        ignored += others
    require_classes(files, [str(digit) for digit in range(10)], "Digits-DG")
    return FileDataset("digits-dg", home, files, protocol="official parts", ignored=ignored)

"""Addresses, licences and counts of the datasets that `metavib fetch` knows.

Nobody publishes hashes of these archives, so what is fetched is known by its layout and its numbers of images,
classes and domains. An address of Google Drive has `confirm=t`, without which large files are answered by a page.
Archives of different mirrors may have different layouts; the loader knows them all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
_LILA = "caltechcameratraps/eccv_18_"
_DOMAINNET = "csr.bu.edu/ftp/visda/2019/multi-source/"


class Archive(NamedTuple):
    """One file to download, and where it may be had."""

    name: str  # its ending says what it is; a .txt is kept as it is
    mirrors: tuple[str, ...]  # addresses, tried one after another
    size: int | None = None  # bytes, about, where it is published
    sha256: str | None = None  # where it is published
    into: str = ""  # the folder in the dataset's own that its contents go into


@dataclass(frozen=True)
class Publication:
    """A published dataset: its files, licence and counts."""

    title: str
    paper: str
    licence: str
    page: str  # where its authors write about it
    archives: tuple[Archive, ...]
    domains: int
    classes: int
    images: int

    @property
    def size(self) -> int | None:
        """Bytes to download, about; None where that is not published."""
        sizes = [archive.size for archive in self.archives]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    @property
    def licence_in_short(self) -> str:
        """Its name, without address and advice."""
        return re.split(r"[:(]", self.licence, maxsplit=1)[0].strip()


def _both_schemes(path: str) -> tuple[str, ...]:
    return f"https://{path}", f"http://{path}"


def _lila(name: str, size: int) -> Archive:
    """A file of LILA, which keeps its data in three clouds."""
    places = (
        "https://storage.googleapis.com/public-datasets-lila/",
        "https://lilawildlife.blob.core.windows.net/lila-wildlife/",
        "https://lilablobssc.blob.core.windows.net/",  # its former place
    )
    return Archive(f"eccv_18_{name}", tuple(f"{place}{_LILA}{name}" for place in places), size)


def _domainnet(domain: str, size: int, folder: str = "") -> tuple[Archive, ...]:
    """The images of a domain, and its two lists."""
    lists = (f"{domain}_train.txt", f"{domain}_test.txt")
    return (
        Archive(f"{domain}.zip", _both_schemes(f"{_DOMAINNET}{folder}{domain}.zip"), size),
        *(
            Archive(name, _both_schemes(f"{_DOMAINNET}domainnet/txt/{name}"), 8_000_000, into="splits")
            for name in lists
        ),
    )


def _codalab(bundle: str) -> tuple[str, ...]:
    return (f"https://worksheets.codalab.org/rest/bundles/{bundle}/contents/blob/",)


NOT_PUBLISHED = "none is published: ask the authors before you use it for more than research"
_CDLA = "Community Data License Agreement, Permissive, 1.0 (https://cdla.dev/permissive-1-0/)"

PUBLICATIONS: dict[str, Publication] = {
    "pacs": Publication(
        "PACS",
        "Li et al., Deeper, broader and artier domain generalization, ICCV 2017",
        NOT_PUBLISHED,
        "https://domaingeneralization.github.io/",
        (
            Archive(
                "pacs.zip",
                (
                    f"{_DRIVE}1m4X4fROCCXMO0lRLrr6Zz9Vb3974NWhE",  # images and splits
                    f"{_DRIVE}1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd",  # kfold
                ),
            ),
        ),
        domains=4,
        classes=7,
        images=9_991,
    ),
    "vlcs": Publication(
        "VLCS",
        "Fang et al., Unbiased metric learning, ICCV 2013",
        NOT_PUBLISHED,
        "http://www.eecs.qmul.ac.uk/~dl307/project_iccv2017",
        (
            Archive(
                "vlcs",
                (
                    f"{_DRIVE}1r0WL5DDqKfSPp9E3tRENwHaXNs1olLZd",  # with parts
                    f"{_DRIVE}1skwblH1_okBwxWxmRsp9_qi15hyPpxg8",
                ),
            ),
        ),
        domains=4,
        classes=5,
        images=10_729,
    ),
    "office-home": Publication(
        "Office-Home",
        "Venkateswara et al., Deep hashing network for unsupervised domain adaptation, CVPR 2017",
        f"{NOT_PUBLISHED} (its authors have a fair use notice on their page)",
        "https://www.hemanthdv.org/officeHomeDataset.html",
        (
            Archive(
                "office-home.zip",
                (
                    f"{_DRIVE}1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC",
                    f"{_DRIVE}1gkbf_KaxoBws-GWT3XIPZ7BnkqbAxIFa",  # with parts
                ),
            ),
        ),
        domains=4,
        classes=65,
        images=15_588,
    ),
    "terra-incognita": Publication(
        "Terra Incognita",
        "Beery et al., Recognition in terra incognita, ECCV 2018",
        _CDLA,
        "https://lila.science/datasets/caltech-camera-traps",
        (_lila("annotations.tar.gz", 2_997_071), _lila("all_images_sm.tar.gz", 6_492_615_601)),
        domains=4,
        classes=10,
        images=24_330,
    ),
    "domain-net": Publication(
        "DomainNet",
        "Peng et al., Moment matching for multi-source domain adaptation, ICCV 2019",
        f"{NOT_PUBLISHED} (its authors have a fair use notice on their page)",
        "https://ai.bu.edu/M3SDA/",
        (
            *_domainnet("clipart", 1_300_000_000, "groundtruth/"),
            *_domainnet("infograph", 4_100_000_000),
            *_domainnet("painting", 3_700_000_000, "groundtruth/"),
            *_domainnet("quickdraw", 460_000_000),
            *_domainnet("real", 6_100_000_000),
            *_domainnet("sketch", 2_700_000_000),
        ),
        domains=6,
        classes=345,
        images=586_575,
    ),
    "digits-dg": Publication(
        "Digits-DG",
        "Zhou et al., Deep domain-adversarial image generation for domain generalisation, AAAI 2020",
        f"{NOT_PUBLISHED} (of its parts, SVHN is for non-commercial use only)",
        "https://github.com/KaiyangZhou/Dassl.pytorch",
        (
            Archive(
                "digits-dg.zip",
                (
                    f"{_DRIVE}15V7EsHfCcfbKgsDmzQKj_DfXt_XYp_P7",
                    "https://csip.fzu.edu.cn/files/datasets/SSDG/digits_dg.zip",
                ),
            ),
        ),
        domains=4,
        classes=10,
        images=24_000,
    ),
    "camelyon17": Publication(
        "Camelyon17-WILDS 1.0",
        "Bandi et al., IEEE TMI 2018; Koh et al., WILDS, ICML 2021",
        "CC0 1.0, public domain (https://creativecommons.org/publicdomain/zero/1.0/)",
        "https://wilds.stanford.edu/datasets/#camelyon17",
        (Archive("camelyon17_v1.0.tar.gz", _codalab("0xe45e15f39fb54e9d9e919556af67aabe"), 10_658_709_504),),
        domains=5,
        classes=2,
        images=455_954,
    ),
    "iwildcam": Publication(
        "iWildCam-WILDS 2.0",
        "Beery et al., The iWildCam 2020 competition dataset, 2020; Koh et al., WILDS, ICML 2021",
        _CDLA,
        "https://wilds.stanford.edu/datasets/#iwildcam",
        (Archive("iwildcam_v2.0.tar.gz", _codalab("0x6313da2b204647e79a14b468131fcd64"), 11_957_420_032),),
        domains=245,
        classes=182,
        images=203_029,
    ),
}

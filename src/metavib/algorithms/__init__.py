"""One file a paper; the registry is this dictionary."""

from __future__ import annotations

from typing import Any

from metavib.algorithms.base import Algorithm
from metavib.algorithms.crossgrad import CrossGrad
from metavib.algorithms.d_sam import DSAM
from metavib.algorithms.dsn import DSN
from metavib.algorithms.epi_fcr import EpiFCR
from metavib.algorithms.erm import ERM
from metavib.algorithms.feature_critic import FeatureCritic
from metavib.algorithms.jigen import JiGen
from metavib.algorithms.low_rank import LowRank
from metavib.algorithms.masf import MASF
from metavib.algorithms.metareg import MetaReg
from metavib.algorithms.metavib import VIB, Baseline, MetaVIB
from metavib.algorithms.mldg import MLDG
from metavib.algorithms.mmd_aae import MMDAAE
from metavib.algorithms.mtae import MTAE
from metavib.algorithms.reptile import Reptile
from metavib.errors import unknown_name
from metavib.networks.backbone import Backbone
from metavib.settings import Settings

ALGORITHMS: dict[str, type[Algorithm]] = {
    "erm": ERM,
    "baseline": Baseline,
    "vib": VIB,
    "metavib": MetaVIB,
    "mldg": MLDG,
    "feature_critic": FeatureCritic,
    "masf": MASF,
    "metareg": MetaReg,
    "reptile": Reptile,
    "epi_fcr": EpiFCR,
    "crossgrad": CrossGrad,
    "jigen": JiGen,
    "d_sam": DSAM,
    "low_rank": LowRank,
    "mmd_aae": MMDAAE,
    "dsn": DSN,
    "mtae": MTAE,
}
TITLES = {  # as tables print them
    "erm": "ERM",
    "baseline": "Baseline",
    "vib": "VIB",
    "metavib": "MetaVIB",
    "mldg": "MLDG",
    "feature_critic": "Feature-Critic",
    "masf": "MASF",
    "metareg": "MetaReg",
    "reptile": "Reptile",
    "epi_fcr": "Epi-FCR",
    "crossgrad": "CrossGrad",
    "jigen": "JiGen",
    "d_sam": "D-SAM",
    "low_rank": "Low-rank (Li et al. 2017)",
    "mmd_aae": "MMD-AAE",
    "dsn": "DSN",
    "mtae": "MTAE",
}


def algorithm_named(name: str) -> type[Algorithm]:
    """The class of this name."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def create(name: str, backbone: Backbone, classes: int, domains: int, config: Settings) -> Algorithm:
    """The algorithm of this name on a backbone; `domains` is the number of source domains."""
    kind: Any = algorithm_named(name)
    if kind.PER_DOMAIN:
        return kind(backbone, classes, config, domains=domains)
    return kind(backbone, classes, config)

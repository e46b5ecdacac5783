"""One file a paper. `ALGORITHMS` is the registry, `create` makes one by name, `base.Algorithm` is the contract."""

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
from metavib.core.errors import require_known
from metavib.core.settings import Settings
from metavib.nn.backbone import Backbone

__all__ = [
    "ALGORITHMS",
    "algorithm_named",
    "base",
    "create",
    "erm",
    "inferred",
    "metavib",
    "title_of",
]

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


def algorithm_named(name: str) -> type[Algorithm]:
    """The class of this name."""
    require_known("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def title_of(name: str) -> str:
    """The name as tables print it; an algorithm without a title goes by the name it is called by."""
    return (ALGORITHMS[name].title if name in ALGORITHMS else "") or name


def create(name: str, backbone: Backbone, classes: int, domains: int, config: Settings) -> Algorithm:
    """The algorithm of this name on a backbone; `domains` is the number of source domains."""
    kind: Any = algorithm_named(name)
    if kind.PER_DOMAIN:
        return kind(backbone, classes, config, domains=domains)
    return kind(backbone, classes, config)

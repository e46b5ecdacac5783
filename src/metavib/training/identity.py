"""The identity of an experiment: a hash that stays the same when settings are added.

The first version hashed every setting that there was, and those (`FIRST`) count for ever, whatever their value.
A setting that came later counts where its value is not the one that records without it mean (`absent`). So the
experiments of earlier versions keep their identities, and with them their checkpoints and the cells of sweeps and
of the paper's tables. Where settings mean something else than they did, the `VERSION` of their class counts too.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from metavib.core.settings import Scalar, Settings, absent_values

_INFERRED = "latent_width latent_draws classifier_draws initial_log_variance roles feature_size"

# The settings of the first version, by section; those of a method, by algorithm. Nothing is added here.
FIRST: dict[str, str] = {
    "training": "steps domains_per_episode images_per_domain class_balanced learning_rate backbone_rate "
    "initialisation schedule warmup clip_norm weight_decay validation_share validations patience selection "
    "average average_decay record_information precision",
    "augmentation": "smallest_crop flip colour grey",
    "evaluation": "repeats",
    "baseline": _INFERRED,
    "vib": f"{_INFERRED} beta",
    "metavib": f"{_INFERRED} beta kl_direction",
    "mldg": "inner_rate meta_test_weight second_order",
    "feature_critic": "inner_rate auxiliary_weight warm_up critic_width",
    "masf": "inner_rate global_weight local_weight temperature metric margin metric_hidden metric_width",
    "metareg": "inner_rate inner_steps initial_penalty penalty_rate phase_one",
    "reptile": "inner_rate inner_steps",
    "epi_fcr": "feature_weight classifier_weight random_weight warm_up",
    "crossgrad": "label_step domain_step label_share domain_share",
    "jigen": "jigsaw_weight shuffled_share permutations",
    "d_sam": "width stages",
    "low_rank": "domain_rank channel_rank domain_rate",
    "mmd_aae": "reconstruction_weight discrepancy_weight prior_weight code_width auxiliary_width",
    "dsn": "reconstruction_weight difference_weight similarity_weight warm_up auxiliary_width",
    "mtae": "phase_one reconstruction_weight decoder_width",
}


def counted(settings: Settings, owner: str, *, as_at_first: bool = False) -> dict[str, Scalar]:
    """The settings that count in an identity; the owner is a section, or the algorithm of a method.

    The first version counted all settings of an algorithm of one's own, which `FIRST` does not name.
    """
    first, absent = FIRST.get(owner, "").split(), absent_values(type(settings))
    if as_at_first:
        first += [field.name for field in fields(settings) if field.metadata["absent"] is None]
    found: dict[str, Scalar] = {
        name: value for name, value in vars(settings).items() if name in first or value != absent[name]
    }
    return found if settings.VERSION == 1 else found | {"VERSION": settings.VERSION}


def hashed(deciding: Mapping[str, Any]) -> str:
    """16 hex digits of plain values, whatever their order."""
    return hashlib.blake2b(json.dumps(deciding, sort_keys=True).encode(), digest_size=8).hexdigest()

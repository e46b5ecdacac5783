"""One's own network: a module, a function that makes one, or the name of such a function, `module:function`.

A name is imported, which runs code. So only what the user gives by hand comes here; what a run or model directory
says about its network never does.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any, final

from torch import nn

from metavib.core.errors import UserError
from metavib.nn.backbone import Backbone, Input, Wrapped, input_of
from metavib.nn.network import Network
from metavib.nn.probing import in_short

FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
Given = str | Callable[[], Any] | nn.Module
OBJECT = "object"  # stands for the module of a network that was given as it is


@final
class OwnNetwork(Network):
    """A network that is made by a function of the user's."""

    default_weights = "none"  # it stays as it is made

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name, self.make = name, make

    @property
    def title(self) -> str:
        return f"{self.name}, a network of your own"

    def build(self, image_size: int | None = None, given: Input | None = None) -> Backbone:
        try:
            network = self.make()
        except UserError:
            raise
        except Exception as error:  # of code that is not ours, anything
            raise UserError(f"{self.name} failed: {type(error).__name__}: {in_short(error)}.") from error
        if not isinstance(network, nn.Module):
            raise UserError(
                f"{self.name} gives a {type(network).__name__}: let it return a torch.nn.Module, or what "
                "metavib.Backbone.of makes of one."
            )
        if isinstance(network, Wrapped) and given is None and image_size not in (None, network.image_size):
            given = Input(image_size or 0, network.channels, network.normalisation, network.interpolation)
        if isinstance(network, Wrapped):
            return network if given is None else Wrapped(network.network, given)
        if isinstance(network, Backbone):
            if image_size not in (None, network.image_size):
                raise UserError(f"{self.name} takes images of {network.image_size}: leave --image-size out.")
            return network
        return Wrapped(network, given or input_of(network, image_size))


def is_own(name: str) -> bool:
    """Whether a name is one of a network of the user's, as `module:function`."""
    return FORM.fullmatch(name) is not None and name.partition(":")[0] not in ("timm", "torchvision")


def own_network(given: Given | None) -> OwnNetwork | None:
    """The network that the user gives: by `module:function`, as a function, or as it is. None for other names."""
    if given is None or (isinstance(given, str) and not is_own(given)):
        return None
    if isinstance(given, nn.Module):
        return OwnNetwork(f"{OBJECT}:{type(_inner(given)).__name__}", lambda: copy.deepcopy(given))
    if isinstance(given, str):
        return OwnNetwork(given, _imported(given))
    if not callable(given):
        raise UserError(f"a backbone is a name, a function or a torch.nn.Module, not {type(given).__name__}.")
    name = str(getattr(given, "__name__", type(given).__name__)).strip("<>")
    return OwnNetwork(f"{given.__module__}:{name}", given)


def _inner(network: nn.Module) -> nn.Module:
    return network.network if isinstance(network, Wrapped) else network


def _imported(name: str) -> Callable[[], Any]:
    """The function of this name; modules beside the user are found as `python -m` finds them."""
    module_name, _, function_name = name.partition(":")
    if module_name == OBJECT:
        raise UserError(
            f"the network {name!r:.100} was given in Python as it is, and cannot be made by its name: give it "
            "again there, as metavib.load(path, backbone=network)."
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # of code that is not ours, anything
        raise UserError(
            f"the backbone {name!r:.100} cannot be imported: {type(error).__name__}: {in_short(error)}. Run "
            f"metavib where {module_name} can be imported."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"{module_name} has no function {function_name!r} that makes a network.")
    return function

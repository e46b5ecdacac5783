"""Backbones h: pure functions from images to features, made of any network by `Backbone.of`.

They keep no running statistics and draw nothing: so `functional_call` and `vmap` can train many at once.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from metavib.core.errors import UserError
from metavib.core.processes.division import Division, copied, gathered, sliced
from metavib.core.shapes import Float
from metavib.nn import probing, purity


@final
class Normalisation(NamedTuple):
    """Mean and deviation of the pixels, once they are scaled to [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


PIXELS = Normalisation(mean=(0.0,), std=(1.0,))
IMAGENET = Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
USUAL_SIZE = 224  # of images, for a network that says nothing about it
LARGEST_SIZE = 4096
INTERPOLATIONS = ("bilinear", "bicubic", "lanczos", "nearest", "box", "hamming")  # as Pillow has them
State = dict[str, Any]  # tensors by name, as a file of weights has them


class Backbone(nn.Module, ABC):
    """h: images -> features. Pure: no running statistics, no random state."""

    feature_size: int
    stage_sizes: tuple[int, ...] = ()  # channels of what `at_stages` hands out before the features
    image_size: int  # side of the square input
    channels: int
    normalisation: Normalisation
    interpolation: str = "bilinear"  # by which images are brought to the size
    dropout_units: tuple[int, ...] = ()  # widths of its dropout layers; each drops half of its units
    small: bool = False  # one run alone leaves a GPU idle
    has_own_kernels: bool = False  # of nn/kernels, on a GPU: then it is not compiled
    precision: torch.dtype | None = None  # autocast to it (bfloat16) when set
    twice_differentiable: bool = False  # then by kernels that have second derivatives
    stacked: bool = False  # runs with this network are one program: then by operators that vmap knows

    imagenet_weights: str | None = None  # the name of torchvision's weights, where it has the network trained
    weight_files: tuple[str, ...] = ()  # DATA/weights/<one of them>-imagenet.safetensors has such weights
    head_keys: tuple[str, ...] = ("classifier.", "fc.")  # of a file of weights, and not ours to load

    def __init__(self) -> None:
        super().__init__()
        self.passed = nn.Identity()  # each stage passes here, where a hook can see it

    @staticmethod
    def of(
        network: nn.Module,
        *,
        image_size: int | None = None,
        channels: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        interpolation: str | None = None,
    ) -> Backbone:
        """A network from elsewhere as a backbone: any module that gives features [n, d] for images.

        The module stays as it is; a copy of it is made pure. Batch normalisation with statistics of a training is
        frozen, and becomes GroupNorm where there are none yet. Dropout and stochastic depth are off. What cannot
        be made pure is refused by name.

        Images are `image_size` x `image_size` (224) with `channels` (those of the first convolution, or 3), 1 for
        grey or 3 for colour; scaled to [0, 1], `mean` is subtracted from them, and they are divided by `std`
        (ImageNet's for colour, 0 and 1 for grey). They are brought to the size by `interpolation` (bilinear). A
        network of timm says all that itself.
        """
        if isinstance(network, Backbone):
            return network
        if not isinstance(network, nn.Module):
            raise UserError(f"a network must be a torch.nn.Module, not {type(network).__name__}.")
        made = Wrapped(network, input_of(network, image_size, channels, mean, std, interpolation))
        made.require_pure()
        return made

    division: Division | None = None  # among processes: then the images are this one's own, the features all

    @final  # type: ignore[misc]  # nn.Module declares forward as a variable
    def forward(
        self,
        images: Float[Tensor, "own channels height width"],
        dropout: Float[Tensor, "batch units"] | None = None,
    ) -> Float[Tensor, "batch features"]:
        """Features in float32, or in the images' float64.

        `dropout` is standard normal noise, one draw for each of `dropout_units`: a unit is kept where its
        draw is positive. Without it nothing is dropped.
        """
        *_, features = self._in_all_processes(images, dropout, at_stages=False)
        return features

    @final
    def at_stages(
        self,
        images: Float[Tensor, "own channels height width"],
        dropout: Float[Tensor, "batch units"] | None = None,
    ) -> tuple[Float[Tensor, "batch ..."], ...]:
        """Maps or units on the way, as many as `stage_sizes` says, and the features last."""
        return self._in_all_processes(images, dropout, at_stages=True)

    def _in_all_processes(
        self, images: Tensor, dropout: Tensor | None, *, at_stages: bool
    ) -> tuple[Tensor, ...]:
        if self.division is None:
            return self.of_these(images, dropout, at_stages=at_stages)
        own_images = sliced(images, self.division) if self.division.whole_images else images
        own_dropout = None if dropout is None else self.division.own_rows(dropout)
        parameters = {f"backbone.{name}": own for name, own in self.named_parameters()}
        given = (own_images, own_dropout, at_stages)
        own = functional_call(_Undivided(self), copied(parameters), given)
        return tuple(gathered(one, self.division) for one in own)

    @final
    def of_these(self, images: Tensor, dropout: Tensor | None, *, at_stages: bool) -> tuple[Tensor, ...]:
        """The features of these images by themselves, or all stages."""
        # A disabled autocast would do too, but torch.export leaves it in the graph as an operator of its own.
        with torch.autocast(images.device.type, dtype=self.precision) if self.precision else nullcontext():
            if at_stages:
                found = self.stages(images, self._masks(dropout))
                return tuple(_at_least_single(self.passed(maps)) for maps in found)
            return (_at_least_single(self.extract(images, self._masks(dropout))),)

    @abstractmethod
    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        """Features of the images; one mask for each of `dropout_units`, to be given to `drop`."""

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        """Yield what `at_stages` hands out; the features alone where a network tells nothing of its stages."""
        yield self.extract(images, masks)

    def stage_ends(self, images: Tensor) -> tuple[Tensor, ...]:
        """Maps or tokens at the end of each stage that `--freeze stages=N` can keep."""
        return self.at_stages(images)[:-1]

    def initialise_as_torch_does(self) -> None:
        """Draw all weights again, the way that torch's own layers begin."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.reset_parameters()

    def input_scale(self) -> float | Tensor:
        """The deviation of the inputs: images come normalised."""
        return 1.0

    def freeze_normalisation(self) -> None:
        """Make place for the statistics that pre-trained weights bring along; most networks have none."""

    @property
    def frozen_normalisation(self) -> bool:
        """Whether it brought statistics along that are kept, without any file of weights."""
        return False

    @property
    def layers(self) -> nn.Module:
        """The module that a file of weights belongs to."""
        return self

    def _masks(self, dropout: Tensor | None) -> tuple[Tensor | None, ...]:
        if dropout is None:
            return (None,) * len(self.dropout_units)
        return torch.split(dropout > 0, list(self.dropout_units), dim=1)


class Staged(Backbone):
    """A backbone that computes stage by stage, and can hand out what it has on the way."""

    @abstractmethod
    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        """Maps or units after each stage, and the features last."""

    @final
    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        for maps in self.stages(images, masks):
            features = self.passed(maps)  # earlier stages are freed on the way
        return features


@final
class Input(NamedTuple):
    """The images that a network takes."""

    image_size: int
    channels: int
    normalisation: Normalisation
    interpolation: str = "bilinear"


@final
class Published(NamedTuple):
    """Weights that the library of a network has trained."""

    layout: str  # whose, as in "timm's"
    state: Callable[[], State]
    fitted: Callable[[State, nn.Module], State] = lambda state, network: state  # a file's to the network
    head_keys: tuple[str, ...] = ()  # of a file, and not ours to load


@final
class Wrapped(Backbone):
    """A network from elsewhere, made pure."""

    def __init__(self, network: nn.Module, given: Input, published: Published | None = None) -> None:
        super().__init__()
        self.image_size, self.channels, self.normalisation, self.interpolation = given
        self.published = published
        self.head_keys = published.head_keys if published else ()
        self.network = purity.make_pure(copy.deepcopy(network)).eval()
        images = probing.probe_images(self.channels, self.image_size)
        self.feature_size = probing.feature_width(self.network, images.to(_device_of(network)))

    def require_pure(self) -> None:
        """Refuse what could not be made pure, by name."""
        images = probing.probe_images(self.channels, self.image_size)
        probing.require_pure(self.network, images.to(_device_of(self.network)))

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        # The fused ways to compute attention have first derivatives alone, and vmap does not know them.
        plain = self.twice_differentiable or self.stacked
        with sdpa_kernel(SDPBackend.MATH) if plain else nullcontext():
            return self.network(images)

    def stage_ends(self, images: Tensor) -> tuple[Tensor, ...]:
        return probing.stage_ends(self.network, images.to(_device_of(self.network)))

    def train(self, mode: bool = True) -> Wrapped:
        """Leave off what layers do in training alone: drawing, and keeping statistics."""
        super().train(mode)
        self.network.eval()
        return self

    def initialise_as_torch_does(self) -> None:
        if not self.frozen_normalisation:
            super().initialise_as_torch_does()

    def freeze_normalisation(self) -> None:
        self.network = purity.freeze(self.network)

    @property
    def frozen_normalisation(self) -> bool:
        return purity.is_frozen(self.network)

    @property
    def layers(self) -> nn.Module:
        return self.network


def input_of(
    network: nn.Module,
    image_size: int | None = None,
    channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: str | None = None,
) -> Input:
    """The images that a network takes: as said here, as it says itself (timm's do), or the usual ones."""
    says = getattr(network, "pretrained_cfg", None) or {}
    first = next((own.in_channels for own in network.modules() if isinstance(own, nn.Conv2d)), 3)
    own_channels, *sides = says.get("input_size") or (first, USUAL_SIZE, USUAL_SIZE)
    if image_size is None and len(set(sides)) != 1:
        raise UserError(
            f"{type(network).__name__} takes images of {' x '.join(map(str, sides))}, which are not square: give "
            "--image-size."
        )
    size = sides[0] if image_size is None else image_size
    if type(size) is not int or not 1 <= size <= LARGEST_SIZE:
        raise UserError(f"image_size must be a whole number from 1 to {LARGEST_SIZE}, not {size!r}.")
    channels = own_channels if channels is None else channels
    if channels not in (1, 3):
        raise UserError(
            f"{type(network).__name__} takes images of {channels} channels, images are grey or in colour: give "
            " a network for 1 or 3."
        )
    usual = IMAGENET if channels == 3 else PIXELS
    means = _by_channel("mean", mean if mean is not None else says.get("mean", usual.mean), channels)
    deviations = _by_channel("std", std if std is not None else says.get("std", usual.std), channels)
    if min(deviations) <= 0:
        raise UserError(f"std must be above 0, not {deviations}.")
    how = interpolation or says.get("interpolation") or INTERPOLATIONS[0]
    how = INTERPOLATIONS[0] if how == "random" else how  # timm's, for training
    if how not in INTERPOLATIONS:
        raise UserError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, not {how!r:.50}.")
    return Input(size, channels, Normalisation(means, deviations), how)


def _by_channel(name: str, values: Sequence[float], channels: int) -> tuple[float, ...]:
    found = tuple(float(value) for value in values)
    if len(found) != channels or not all(map(math.isfinite, found)):
        raise UserError(f"{name} must have {channels} numbers, one for each channel, not {found}.")
    return found


def _device_of(network: nn.Module) -> torch.device:
    return next((own.device for own in network.parameters()), torch.device("cpu"))


def _at_least_single(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


class _Undivided(nn.Module):
    """A backbone by its `of_these`, where `functional_call` finds it."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor, dropout: Tensor | None, at_stages: bool) -> tuple[Tensor, ...]:
        return self.backbone.of_these(images, dropout, at_stages=at_stages)


@contextmanager
def divided(backbone: Backbone, division: Division | None) -> Iterator[None]:
    """Inside, the backbone is given a process's own images and gives the features of all."""
    former, backbone.division = backbone.division, division
    try:
        yield
    finally:
        backbone.division = former


def drop(units: Tensor, mask: Tensor | None) -> Tensor:
    """Inverted dropout at one half, AlexNet's rate: kept units count twice, so that the mean is unchanged."""
    return units if mask is None else units * mask * 2

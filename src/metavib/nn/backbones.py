"""The backbones h: images -> features.

The tables are those of the supplement of MetaVIB (Du et al., ECCV 2020); "digits-domainbed" is the digit
network of DomainBed (Gulrajani and Lopez-Paz, ICLR 2021); the others are torchvision's, without their heads.
`networks.network_named` gives these and those of timm, of torchvision and of users by their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from torch import Tensor, nn

from metavib.nn import kernels
from metavib.nn.backbone import IMAGENET, PIXELS, Backbone, Staged, drop
from metavib.nn.kernels.folded_convolution import convolution_of_any_order, folded
from metavib.nn.kernels.fused_activation import activated
from metavib.nn.kernels.pooled_convolution import pooled_convolution
from metavib.nn.resnet import ResNet18, ResNet50, ResNet50V1


@final
class DigitNetwork(Staged):
    """The supplement's network for Rotated MNIST."""

    small = True
    has_own_kernels = True
    feature_size = 256
    stage_sizes = (32, 32)
    image_size = 28
    channels = 1
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        # The table prints VALID pooling; its sizes, 28 -> 14 -> 7, need a padding of one.
        self.convolution_1 = nn.Conv2d(1, 32, 3, padding=1)  # pooled to 14 x 14 x 32
        self.convolution_2 = nn.Conv2d(32, 32, 3, padding=1)  # pooled to 7 x 7 x 32
        self.connected = nn.Linear(7 * 7 * 32, 256)
        # He et al. (ICCV 2015): torch's own way lets the differences between images fade from layer to layer,
        # and MetaVIB, which infers its classifiers from those differences, then begins at chance for long.
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        # The precision is given layer by layer: autocast does not reach all of them in stacked runs.
        dtype = self.precision or images.dtype
        units = images
        for layer in (self.convolution_1, self.convolution_2):
            assert layer.bias is not None
            units = pooled_convolution(
                units, layer.weight, layer.bias, dtype, twice=self.twice_differentiable
            )
            yield units
        weight, bias = self.connected.weight.to(dtype), self.connected.bias.to(dtype)
        yield nn.functional.linear(units.flatten(1), weight, bias).relu()


@final
class DomainBedDigits(Staged):
    """DomainBed's MNIST_CNN: GroupNorm after each ReLU, global average pooling."""

    feature_size = 128
    stage_sizes = (64, 128, 128)
    image_size = 28
    channels = 1
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *self._stage(1, 64),
            *self._stage(64, 128, stride=2),
            *self._stage(128, 128),
            *self._stage(128, 128),
        )

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, ...]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
        return convolution, nn.ReLU(), nn.GroupNorm(8, outputs)

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        for maps, last in _after_each(nn.GroupNorm, self.convolutions, images):
            yield maps.mean((2, 3)) if last else maps


@final
class PaperAlexNet(Staged):
    """The supplement's network for PACS and VLCS: AlexNet without groups and response normalisation."""

    feature_size = 4096
    stage_sizes = (96, 256, 256, 4096)
    image_size = 227
    channels = 3
    normalisation = IMAGENET
    dropout_units = (4096,)

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            # Printed as SAME; but that gives 28 x 28 after pooling, and the table's 27 x 27 needs VALID.
            nn.Conv2d(3, 96, 11, stride=4),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),  # 27 x 27 x 96
            nn.Conv2d(96, 256, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),  # 13 x 13 x 256
            nn.Conv2d(256, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),  # 6 x 6 x 256
        )
        self.connected_6 = nn.Linear(6 * 6 * 256, 4096)
        self.connected_7 = nn.Linear(4096, 4096)

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        (mask,) = masks
        for maps, _ in _after_each(nn.MaxPool2d, self.convolutions, images):
            yield maps
        units = self.connected_6(maps.flatten(1)).relu()
        yield units
        yield self.connected_7(drop(units, mask)).relu()


@final
class TorchvisionAlexNet(Staged):
    """torchvision's AlexNet ("One weird trick", Krizhevsky 2014) up to its last hidden layer."""

    feature_size = 4096
    stage_sizes = (64, 192, 256, 4096)
    image_size = 224
    channels = 3
    normalisation = IMAGENET
    dropout_units = (9216, 4096)
    imagenet_weights = "AlexNet_Weights.IMAGENET1K_V1"
    head_keys = ("classifier.6.",)

    def __init__(self) -> None:
        from torchvision import models

        super().__init__()
        network = models.alexnet(weights=None)
        self.features = network.features
        # Under torchvision's names; our own `drop` stands for its layers 0 and 3, relu for 2 and 5.
        self.classifier = nn.ModuleDict({"1": network.classifier[1], "4": network.classifier[4]})

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        first_mask, second_mask = masks
        # torchvision's average pooling to 6 x 6 does nothing at this image size.
        for maps, _ in _after_each(nn.MaxPool2d, self.features, images):
            yield maps
        units = self.classifier["1"](drop(maps.flatten(1), first_mask)).relu()
        yield units
        yield self.classifier["4"](drop(units, second_mask)).relu()


@final
class SqueezeNet(Staged):
    """torchvision's SqueezeNet 1.0 (Iandola et al. 2016): the average of its last fire module."""

    feature_size = 512
    stage_sizes = (96, 256, 512)
    image_size = 224
    channels = 3
    normalisation = IMAGENET
    imagenet_weights = "SqueezeNet1_0_Weights.IMAGENET1K_V1"
    head_keys = ("classifier.1.",)
    has_own_kernels = True  # `in_fewer_passes` on a GPU

    def __init__(self) -> None:
        from torchvision import models

        super().__init__()
        self.features = models.squeezenet1_0(weights=None).features

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        fused = self.has_own_kernels and kernels.run_on(images.device)
        found = self.in_fewer_passes(images) if fused else _after_each(nn.MaxPool2d, self.features, images)
        for maps, last in found:
            yield maps.mean((2, 3)) if last else maps

    def in_fewer_passes(self, images: Tensor) -> Iterator[tuple[Tensor, bool]]:
        """Compute the values of `_after_each`, with all that follows a convolution done by `activated`."""
        from torchvision.models.squeezenet import Fire

        layers = [layer for layer in self.features if not isinstance(layer, nn.ReLU)]
        maps = images.to(self.precision or images.dtype)
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            pooled = isinstance(following, nn.MaxPool2d)
            if isinstance(layer, nn.Conv2d):
                maps = activated([self._convolved(layer, maps)], pooled=pooled)
            elif isinstance(layer, Fire):
                squeezed = activated([self._convolved(layer.squeeze, maps)])
                expanded = [self._convolved(part, squeezed) for part in (layer.expand1x1, layer.expand3x3)]
                maps = activated(expanded, pooled=pooled)
            if pooled:
                yield maps, False
        yield maps, True

    def _convolved(self, layer: nn.Conv2d, maps: Tensor) -> tuple[Tensor, Tensor]:
        """The convolution without its bias, and the bias."""
        assert layer.bias is not None
        assert not isinstance(layer.padding, str)
        weight, stride = layer.weight.to(maps.dtype), layer.stride
        if (
            layer.in_channels == self.channels and maps.shape[-1] % 2 == 0
        ):  # the first: of three channels, stride 2
            (maps, weight), stride = folded(maps, weight), (1, 1)
        convolution = convolution_of_any_order if self.twice_differentiable else nn.functional.conv2d
        return convolution(maps, weight, stride=stride, padding=layer.padding), layer.bias


def _after_each(kind: type[nn.Module], layers: nn.Sequential, maps: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """The maps after each layer of this kind and after the last layer, and whether it is the last.

    They are yielded, not returned at the end: compilers do not follow a generator that returns a tensor.
    """
    *layers_before, last = layers
    for layer in layers_before:
        maps = layer(maps)
        if isinstance(layer, kind):
            yield maps, False
    yield last(maps), True


BACKBONES: dict[str, type[Backbone]] = {
    "digits": DigitNetwork,
    "digits-domainbed": DomainBedDigits,
    "alexnet-paper": PaperAlexNet,
    "alexnet": TorchvisionAlexNet,
    "squeezenet": SqueezeNet,
    "resnet18": ResNet18,
    "resnet50": ResNet50,
    "resnet50-v1": ResNet50V1,
}

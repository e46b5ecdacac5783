"""torchvision's residual networks as backbones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from torch import Tensor, nn

from metavib.nn.backbone import IMAGENET, Staged
from metavib.nn.pure_normalisation import FrozenBatchNorm


class ResNet(Staged):
    """torchvision's residual networks (He et al., CVPR 2016), with a normalisation that is pure.

    `pure_normalisation` says why: with pre-trained weights their statistics are constants, from scratch GroupNorm
    takes the place of batch normalisation.
    """

    image_size = 224
    channels = 3
    normalisation = IMAGENET
    head_keys = ("fc.",)
    architecture: str  # torchvision's name

    def __init__(self) -> None:
        from torchvision import models

        super().__init__()
        network = models.get_model(
            self.architecture, weights=None, norm_layer=lambda channels: nn.GroupNorm(32, channels)
        )
        self.conv1, self.bn1, self.maxpool = network.conv1, network.bn1, network.maxpool
        self.layer1, self.layer2 = network.layer1, network.layer2
        self.layer3, self.layer4 = network.layer3, network.layer4

    @final
    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        maps = self.maxpool(self.bn1(self.conv1(images)).relu())
        for layer in (self.layer1, self.layer2, self.layer3):
            maps = layer(maps)
            yield maps
        yield self.layer4(maps).mean((2, 3))

    @final
    def freeze_normalisation(self) -> None:
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.GroupNorm):
                    setattr(module, name, FrozenBatchNorm(child.num_channels).to(child.weight))


@final
class ResNet18(ResNet):
    """ResNet with 18 layers."""

    feature_size = 512
    stage_sizes = (64, 128, 256)
    imagenet_weights = "ResNet18_Weights.IMAGENET1K_V1"
    architecture = "resnet18"


@final
class ResNet50(ResNet):
    """ResNet with 50 layers. Version 1 of its weights is the one that DomainBed and its successors report."""

    feature_size = 2048
    stage_sizes = (256, 512, 1024)
    imagenet_weights = "ResNet50_Weights.IMAGENET1K_V1"
    architecture = "resnet50"


@final
class ResNet50V1(ResNet):
    """ResNet with 50 layers as He et al. published it, in Caffe and in Keras.

    A stage's first block takes every second pixel in its first 1 x 1 convolution, and not in the 3 x 3 as
    torchvision does. Keys and normalisation of its weights are torchvision's.
    """

    feature_size = 2048
    stage_sizes = (256, 512, 1024)
    weight_files = ("resnet50_v1",)
    architecture = "resnet50"

    def __init__(self) -> None:
        super().__init__()
        for stage in (self.layer2, self.layer3, self.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = stage[0].conv2.stride, stage[0].conv1.stride

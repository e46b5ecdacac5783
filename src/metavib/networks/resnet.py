"""torchvision's residual networks as backbones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor, nn
from torchvision import models

from metavib.networks.backbone import IMAGENET, Staged


class ResNet(Staged):
    """torchvision's residual networks (He et al., CVPR 2016), with a normalisation that is pure.

    Batch statistics would make the features of one image depend on the others. With pre-trained weights
    their running statistics become constants while the affine parameters are trained, as DomainBed does.
    From scratch GroupNorm takes their place, because frozen random statistics do not normalise.
    """

    image_size = 224
    channels = 3
    normalisation = IMAGENET
    head_keys = ("fc.",)

    def __init__(self) -> None:
        super().__init__()
        network = self.whole_network(lambda channels: nn.GroupNorm(32, channels))
        self.conv1 = network.conv1
        self.bn1 = network.bn1
        self.maxpool = network.maxpool
        self.layer1 = network.layer1
        self.layer2 = network.layer2
        self.layer3 = network.layer3
        self.layer4 = network.layer4

    @staticmethod
    @abstractmethod
    def whole_network(norm_layer: Callable[[int], nn.Module]) -> models.ResNet:
        """torchvision's network, head included, with random weights."""

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
    imagenet_weights = models.ResNet18_Weights.IMAGENET1K_V1

    @staticmethod
    def whole_network(norm_layer: Callable[[int], nn.Module]) -> models.ResNet:
        return models.resnet18(weights=None, norm_layer=norm_layer)


@final
class ResNet50(ResNet):
    """ResNet with 50 layers. Version 1 of its weights is the one that DomainBed and its successors report."""

    feature_size = 2048
    stage_sizes = (256, 512, 1024)
    imagenet_weights = models.ResNet50_Weights.IMAGENET1K_V1

    @staticmethod
    def whole_network(norm_layer: Callable[[int], nn.Module]) -> models.ResNet:
        return models.resnet50(weights=None, norm_layer=norm_layer)


@final
class FrozenBatchNorm(nn.Module):
    """Batch normalisation by constant statistics: y = weight (x - mean) / sqrt(variance + eps) + bias."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, maps: Tensor) -> Tensor:
        # Not F.batch_norm: under vmap it refuses bfloat16 maps with float32 parameters.
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return (maps * scale[:, None, None] + shift[:, None, None]).to(maps.dtype)

"""JiGen: domain generalisation by solving jigsaw puzzles (Carlucci et al., CVPR 2019).

Beside the classes the network learns to tell how an image was shuffled: it is cut into 3 x 3 tiles, which are laid
out in one of P known orders. How an object's parts lie to one another holds in every domain, so that features
which know it carry over. With h the backbone, c the classifier of labels and j that of orders, each image of the
batch is shuffled with a certain probability and otherwise left as it is, which is order 0:

    classification   CE[ c(h(x)), y ]          mean over the images that were left as they are
    jigsaw           alpha CE[ j(h(z)), p ]    mean over all images z, each in its order p from 0 to P

Shuffled images are not classified, which would make the objects harder to recognise, says the paper; the command
that its authors publish classifies them too. With a share of zero and alpha = 0 it is ERM; with a share of zero
alone j has nothing to tell apart.

The orders are computed (`distant_orders`): beginning with the one that leaves everything in place, the next is
always one of the 9! whose least Hamming distance to those before it is largest; of these the one with the largest
sum of distances, then the first in lexicographic order. For P = 30 any two differ in at least 7 of 9 places, and
five of six pairs in 8 or 9; more than 9 orders cannot all differ everywhere.

The defaults are those of the authors' command for AlexNet on PACS: P = 30 beside the right order, alpha = .9, and
7 of 10 images in order.

Deviations:
- The grid takes 3 x floor(side / 3) pixels from the upper left corner, and what is left over stays in its place:
  one row and one column of a digit's 28, two of 224. The authors choose image sizes that can be divided.
- The authors turn single tiles grey at random; here augmentation does so with whole images, as for all methods.
- Episodes and Adam are those of all methods here; domains make no difference, as in the paper.

It takes images: features without a place in a plane have no tiles.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from metavib.algorithms.base import Noise, Shapes, SoftmaxClassifier
from metavib.core.errors import UserError
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Int
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.functional.predictive import masked_mean

GRID = 3  # tiles along a side
TILES = GRID * GRID


@final
class JiGen(SoftmaxClassifier):
    """A softmax classifier whose features also tell in which order the tiles of a shuffled image lie."""

    title = "JiGen"
    paper = "Carlucci et al., CVPR 2019"

    @dataclass(frozen=True)
    class Config(Settings):
        """How many images are shuffled, in how many ways, and what it counts."""

        jigsaw_weight: float = setting(0.9, "alpha: weight of the jigsaw loss", minimum=0)
        shuffled_share: float = setting(
            0.3, "1 - beta: share of the images that are shuffled", minimum=0, maximum=1
        )
        permutations: int = setting(
            30, "P: orders of the tiles, beside the right one", minimum=1, maximum=1000
        )

    STACKABLE = ("jigsaw_weight", "shuffled_share")
    SPLITS_DOMAINS = False
    LEAST_DOMAINS = 1
    WHOLE_IMAGES = True
    TRAINING_ONLY = ("jigsaw_classifier.",)
    jigsaw_weight: Tensor
    shuffled_share: Tensor
    orders: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        if backbone.image_size < GRID:
            raise UserError(
                "jigen shuffles the tiles of images, and features have none: choose another algorithm."
            )
        super().__init__(backbone, classes)
        self.permutations = config.permutations
        self.jigsaw_classifier = nn.Linear(backbone.feature_size, 1 + config.permutations)
        orders = torch.from_numpy(distant_orders(1 + config.permutations)).long()
        self.register_buffer("orders", orders, persistent=False)  # computed again where it is needed
        self._register_stackable(config)

    @classmethod
    def needs_backbone(cls, config: Settings) -> str:
        return "cuts images into tiles, and trains the backbone by them"

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        samples = episode.all_domains()
        which = self.drawn_orders(noise["shuffled"], noise["order"])
        images = rearranged(samples.flat_images(), self.orders[which])
        features = self.backbone(images, noise.get("dropout"))
        errors = nn.functional.cross_entropy(
            self.classifier(features), samples.flat_labels(), reduction="none"
        )
        jigsaw = nn.functional.cross_entropy(self.jigsaw_classifier(features), which)
        return {"classification": masked_mean(errors, which == 0), "jigsaw": self.jigsaw_weight * jigsaw}

    def drawn_orders(
        self, shuffled: Float[Tensor, "batch"], order: Float[Tensor, "batch"]
    ) -> Int[Tensor, "batch"]:
        """Each image's order by its two normal draws: 0, or for a share of the images any other, alike often."""
        uniform = torch.special.ndtr(order)  # rounding may make it 1
        other = 1 + (uniform * self.permutations).long().clamp(max=self.permutations - 1)
        return torch.where(shuffled < torch.special.ndtri(self.shuffled_share), other, 0)

    def noise_shapes(self, meta_train_images: int, meta_test_images: int) -> Shapes:
        images = (meta_train_images + meta_test_images,)
        dropout = super().noise_shapes(meta_train_images, meta_test_images)
        return dropout | {"shuffled": images, "order": images}


def rearranged(
    images: Float[Tensor, "batch channels side side"], orders: Int[Tensor, "batch tiles"]
) -> Float[Tensor, "batch channels side side"]:
    """Images with tile order[k] in the place of tile k, row by row. What the grid leaves over stays as it is."""
    covered = images.shape[-1] // GRID * GRID
    grid = images[..., :covered, :covered].unflatten(-1, (GRID, -1)).unflatten(-3, (GRID, -1))
    tiles = grid.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [batch, tiles, channels, height, width]
    laid_out = tiles.gather(1, orders[:, :, None, None, None].expand_as(tiles))
    rows = laid_out.unflatten(1, (GRID, GRID)).permute(0, 3, 1, 4, 2, 5)
    whole = rows.flatten(4, 5).flatten(2, 3)
    upper = torch.cat([whole, images[..., :covered, covered:]], dim=-1)
    return torch.cat([upper, images[..., covered:, :]], dim=-2)


@functools.cache
def distant_orders(count: int) -> Int[np.ndarray, "count tiles"]:
    """So many orders of the tiles, the right one first, each far from those before it (the module says how)."""
    numbers = itertools.chain.from_iterable(itertools.permutations(range(TILES)))
    everyone = np.fromiter(numbers, dtype=np.int8).reshape(-1, TILES).T.copy()  # [tiles, 9!]

    def distances_to(number: int) -> Int[np.ndarray, "orders"]:
        return (everyone != everyone[:, number, None]).sum(axis=0)

    chosen = [0]
    least = total = distances_to(0)
    while len(chosen) < count:
        farthest = np.flatnonzero(least == least.max())
        chosen.append(int(farthest[total[farthest].argmax()]))
        distances = distances_to(chosen[-1])
        least, total = np.minimum(least, distances), total + distances
    return everyone.T[chosen]

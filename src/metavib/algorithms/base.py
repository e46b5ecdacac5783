"""The base of all algorithms: a module whose losses are a pure function of parameters, episode and noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metavib.core.settings import Settings
from metavib.core.shapes import Float, Images
from metavib.data.episodes import Episode, Samples
from metavib.data.store.storage import Batch
from metavib.nn.backbone import Backbone
from metavib.nn.functional.adaptation import Parameters
from metavib.nn.functional.predictive import Predictive

Noise = Mapping[str, Tensor]  # standard normal draws, by what they are for
Shapes = dict[str, tuple[int, ...]]


class Algorithm(nn.Module, ABC):
    """A backbone h, what the method puts on top of it, its losses and its prediction.

    Nothing here draws a random number, keeps a state between calls or reads a tensor's value, so that the same
    code trains one run, or many runs stacked along a leading axis by `functional_call` and `vmap`.

    Where groups of parameters follow different objectives, each has a term of its own, in which the other groups
    are stopped (`functional.adaptation.stopped`): the gradient of the sum then gives every group its own. A method
    that moves its parameters in a way of its own, by d, has the term 1/2 || theta - stopped(theta + d) ||^2, whose
    gradient is - d. A term that is only to be logged is detached. A buffer `progress` (not saved), where there is
    one, holds the share of the steps that are done, for methods that train in stages, and `updates` their number.
    """

    title: str = ""
    """The name that tables and figures print."""

    paper: str = ""
    """Who published it, and where."""

    Config: type[Settings]
    """The settings of the method."""

    STACKABLE: tuple[str, ...] = ()
    """The settings that may differ between stacked runs: those that are buffers of the module."""

    PER_DOMAIN: bool = False
    """Whether it has parameters for each source domain: `__init__` takes their number as `domains`, and
    `Samples.domains` says which domain is which."""

    LEAST_DOMAINS: int = 2
    """The fewest source domains that it can learn from; one is enough where domains make no difference."""

    PAIRED: bool = False
    """Whether all domains of an episode are drawn by the same numbers: of Rotated MNIST, the same digits."""

    SPLITS_DOMAINS: bool = True
    """Whether the domains of an episode play different parts, so that a class may have to be in several of them to
    be learnt. A class that one source domain alone has is then lent to the others (`data/lone_classes.py`)."""

    WHOLE_IMAGES: bool = False
    """Whether `losses` looks at images beside the backbone: then each of several processes has them all."""

    BACKBONES: tuple[str, ...] = ("backbone.",)
    """How the names of parameters begin that learn at `backbone_rate`: those of copies of the backbone too."""

    APART: tuple[str, ...] = ()
    """How the names of parameters begin that follow an objective of their own: their gradient, which may be of
    another size, is clipped by its own norm."""

    FITTED: tuple[str, ...] = ()
    """The buffers that `begin` fits, where it fits any: they depend on the weights that it finds."""

    TRAINING_ONLY: tuple[str, ...] = ()
    """How the names of parameters begin that no prediction needs: a model directory does without them."""

    def __init__(self, backbone: Backbone, classes: int, *, second_order: bool = False) -> None:
        """`second_order`: the losses differentiate the backbone themselves, and are differentiated then."""
        super().__init__()
        self.backbone = backbone  # h_theta
        backbone.twice_differentiable = second_order
        self.classes = classes

    def _register_stackable(self, config: Settings) -> None:
        """Make buffers of the `STACKABLE` settings; they are not saved, because the configuration has them."""
        for name in self.STACKABLE:
            self.register_buffer(name, torch.tensor(getattr(config, name)), persistent=False)

    @classmethod
    def needs_backbone(cls, config: Settings) -> str | None:
        """Why it cannot learn on features of a frozen backbone, to follow its name; None where it can."""
        return None

    def backbone_features(self, images: Images) -> Float[Tensor, "batch features"]:
        """The features of the backbone at test, before anything that the method adds."""
        return self.backbone(images)

    def forward(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """The losses: `functional_call` needs them under this name."""
        return self.losses(episode, noise)

    @abstractmethod
    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Named terms; their sum is the objective, their names are the log's."""

    @abstractmethod
    def noise_shapes(self, meta_train_images: int, meta_test_images: int) -> Shapes:
        """The noise that `losses` takes for an episode of so many images."""

    def begin(self, episode: Episode) -> None:
        """Fit what has to fit the data before the method's first step (`FITTED`).

        Called with the weights that it begins with; on resume with the first ones of all."""

    def absorb(self, source: Iterable[Batch]) -> None:
        """Take from all source training samples what prediction needs later."""

    def embed(self, images: Images) -> Float[Tensor, "batch features"]:
        """The part of a prediction that has no draws; it is computed once for all of them."""
        return self.backbone(images)

    @abstractmethod
    def predictive(self, embedded: Float[Tensor, "batch features"], noise: Noise | None) -> Predictive:
        """The prediction from what `embed` gave; without noise every distribution stands at its mean."""

    def drawn_and_mean(
        self, embedded: Float[Tensor, "batch features"], noise: Noise
    ) -> tuple[Float[Tensor, "classifier_draws batch classes"], Float[Tensor, "batch classes"]]:
        """Probabilities by each classifier drawn with this noise, and at the mean: both may share much."""
        drawn, at_mean = self.predictive(embedded, noise), self.predictive(embedded, None)
        return drawn.by_classifier(), at_mean.probabilities()

    def class_means(self) -> Float[Tensor, "classes features"] | None:
        """The mean of `embed` over each source class; None for a method that does not keep it."""
        return None

    def prediction_noise_shapes(self, batch: int) -> Shapes:
        """The noise that `predictive` takes. A batch of 1 serves any number of images: all see the same draws."""
        return {}


class SoftmaxClassifier(Algorithm):
    """Base of ERM and most of its rivals: one linear classifier on the backbone's features."""

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        *,
        second_order: bool = False,
        classifier_inputs: int | None = None,
    ) -> None:
        """`classifier_inputs`: how many, for a method that puts something between backbone and classifier."""
        super().__init__(backbone, classes, second_order=second_order)
        self.classifier = nn.Linear(classifier_inputs or backbone.feature_size, classes)

    def network(self) -> Parameters:
        """Backbone and classifier as they are now; in a stack, those of the run."""
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if name.startswith(("backbone.", "classifier."))
        }

    def features(
        self, parameters: Parameters, images: Tensor, dropout: Tensor | None = None
    ) -> Float[Tensor, "batch features"]:
        """h(x) by these parameters."""
        return functional_call(self.backbone, _within(parameters, "backbone."), (images, dropout))

    def logits(
        self, parameters: Parameters, features: Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch classes"]:
        """w_c . h(x) + b_c by these parameters."""
        return functional_call(self.classifier, _within(parameters, "classifier."), (features,))

    def cross_entropy(
        self, parameters: Parameters, samples: Samples, dropout: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """Mean of - log softmax_c(w_c . h(x) + b_c)[y] over the samples, by these parameters.

        Each domain has as many samples, so that it is the mean over domains as well.
        """
        logits = self.logits(parameters, self.features(parameters, samples.flat_images(), dropout))
        return nn.functional.cross_entropy(logits, samples.flat_labels())

    def noise_shapes(self, meta_train_images: int, meta_test_images: int) -> Shapes:
        return dropout_shape(self.backbone, meta_train_images + meta_test_images)

    def predictive(self, embedded: Float[Tensor, "batch features"], noise: Noise | None) -> Predictive:
        return Predictive(torch.log_softmax(self.classifier(embedded), dim=-1)[None, None])


def _within(parameters: Parameters, prefix: str) -> Parameters:
    """The parameters of one part of the module, by their names in that part."""
    return {n.removeprefix(prefix): value for n, value in parameters.items() if n.startswith(prefix)}


def dropout_by_role(noise: Noise, episode: Episode) -> tuple[Tensor | None, Tensor | None]:
    """The dropout noise of the meta-train images, and that of the meta-test ones."""
    dropout = noise.get("dropout")
    if dropout is None:
        return None, None
    of_train, of_test = dropout.tensor_split([episode.meta_train.flat_labels().shape[0]])
    return of_train, of_test


def dropout_shape(backbone: Backbone, images: int) -> Shapes:
    """The noise of the backbone's dropout, where it has any."""
    return {"dropout": (images, sum(backbone.dropout_units))} if backbone.dropout_units else {}

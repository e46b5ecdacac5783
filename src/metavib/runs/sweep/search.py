"""Who proposes settings: all of a grid, keyed random draws, or a model of what did well (`Study`).

A search is asked in rounds. What it proposes depends on the plan and on the scores of earlier rounds alone, so
that a sweep that was killed proposes the same again.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError, require_installed
from metavib.core.settings import Scalar
from metavib.nn.randomness import key_of
from metavib.runs.sweep.plan import Plan
from metavib.runs.sweep.space import Listed, Space, every_combination, random_setting

Setting = dict[str, Scalar]


class Search(ABC):
    """Proposes settings for one algorithm and target."""

    rounds = 1

    @abstractmethod
    def proposals(self, number: int) -> list[Setting]:
        """The settings of this round."""

    def learn(self, number: int, scores: Sequence[float | None]) -> None:  # noqa: B027  # most need not
        """Take the scores of a round's settings; None for one that could not be trained."""


@final
class FixedSearch(Search):
    """A search whose settings are all known before it begins."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings = list(settings)

    def proposals(self, number: int) -> list[Setting]:
        return self.settings


def fixed_search(plan: Plan, algorithm: str, seed: int) -> FixedSearch:
    """A grid, or random draws; the seed is the plan's, or that of a search of its own."""
    space = plan.space_of(algorithm)
    if plan.search == "grid" or not space:  # an algorithm without any of the settings has one to offer
        return FixedSearch(list(every_combination(space)))
    return FixedSearch([random_setting(space, seed, trial) for trial in range(plan.trials)])


RANDOM_FIRST = 10  # trials before the estimator has enough to go by


@final
class Study(Search):
    """Bayesian search by Optuna (Akiba et al., KDD 2019): its tree-structured Parzen estimator.

    The trials are those of one algorithm and target. A journal on disk, which others share, keeps proposals and
    scores. Each proposal is drawn with a seed of its own trial, so that a search that was killed and goes on
    proposes what it would have proposed.
    """

    def __init__(self, name: str, space: Space, trials: int, together: int, seed: int, storage: Any) -> None:
        import optuna

        self.space, self.trials, self.together, self.seed = space, trials, together, seed
        self.rounds = -(-trials // together)
        self.study = optuna.create_study(
            study_name=name, storage=storage, direction="maximize", load_if_exists=True
        )

    def proposals(self, number: int) -> list[Setting]:
        """The settings of the round: those that the journal has already, and new ones."""
        import optuna

        first, beyond = self._bounds(number)
        distributions = {name: _distribution(own) for name, own in self.space.items()}
        while len(self.study.get_trials(deepcopy=False)) < beyond:
            trial = len(self.study.get_trials(deepcopy=False))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self.study.sampler = optuna.samplers.TPESampler(
                    seed=key_of(self.seed, "study", self.study.study_name, trial) % 2**32,
                    n_startup_trials=RANDOM_FIRST,
                    constant_liar=True,  # keeps the proposals of one round apart
                )
            self.study.ask(distributions)
        return [dict(trial.params) for trial in self.study.get_trials(deepcopy=False)[first:beyond]]

    def learn(self, number: int, scores: Sequence[float | None]) -> None:
        """Write down the scores that the journal lacks."""
        from optuna.trial import TrialState

        first, beyond = self._bounds(number)
        trials = self.study.get_trials(deepcopy=False)[first:beyond]
        for trial, score in zip(trials, scores, strict=True):
            if not trial.state.is_finished():
                state = TrialState.FAIL if score is None else TrialState.COMPLETE
                self.study.tell(trial.number, score, state=state)

    def _bounds(self, number: int) -> tuple[int, int]:
        return number * self.together, min((number + 1) * self.together, self.trials)


def open_journal(path: Path) -> Any:
    """The storage of all studies of a sweep, which has its folder to itself."""
    require_installed("optuna", "search: bayesian needs Optuna", extra="sweep")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    class HeldByTheSweep:
        """Optuna's own locks outlive a killed process."""

        def acquire(self) -> bool:
            return True

        def release(self) -> None:
            pass

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if path.exists():
        try:
            content = untrusted.read(path, untrusted.TABLE_BYTES, path.parent)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error}. Remove it to search from the start.") from error
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a kill cut off the last line; what it said will be said again
            atomic.write_bytes(path, whole)
    atomic.make_folder(path.parent)
    try:
        return JournalStorage(
            JournalFileBackend(
                str(path),
                lock_obj=HeldByTheSweep(),  # type: ignore[arg-type]  # it has no public base
            )
        )
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged: {error}. Remove it to search from the start.") from error


def _distribution(own: Listed | Any) -> Any:
    from optuna import distributions

    if isinstance(own, Listed):
        return distributions.CategoricalDistribution(own.values)
    if own.whole:
        return distributions.IntDistribution(int(own.low), int(own.high), log=own.log)
    return distributions.FloatDistribution(own.low, own.high, log=own.log)

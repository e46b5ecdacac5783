"""The sweep itself: settings are proposed, trained and judged round by round; the best one is measured, once."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metavib.nn.randomness import key_of
from metavib.runs.cells import Cell
from metavib.runs.choices import Candidate, ChoiceRecord
from metavib.runs.cross_validation import best_of, judged_by
from metavib.runs.grid import CellResult
from metavib.runs.sweep.plan import Plan
from metavib.runs.sweep.search import Search, Setting, Study, fixed_search, open_journal

# Has cells trained, blind or not, at a stage with a name, and says what became of each, by its place. With a cell
# comes the algorithm and the target that it is for.
Train = Callable[[dict[Cell, tuple[str, str]], bool, str], dict[Path, CellResult]]


@dataclass
class Trial:
    """A setting, its run for each seed, and what its judges say."""

    setting: Setting
    cells: tuple[Cell, ...]
    score: float | None = None
    failure: str | None = None


@dataclass
class Contest:
    """The trials of one algorithm for one target (and one seed, where each seed has a search of its own)."""

    algorithm: str
    target: str
    seeds: tuple[int, ...]
    search: Search
    trials: list[Trial] = field(default_factory=list)

    @property
    def distinct(self) -> list[Trial]:
        """The trials that are not the same as an earlier one."""
        return list({trial.cells: trial for trial in reversed(self.trials)}.values())[::-1]

    @property
    def chosen(self) -> Trial | None:
        """The best, the first of equals; None where none could be judged."""
        if len(self.distinct) == 1:
            return self.distinct[0]
        place = best_of([trial.score for trial in self.distinct])
        return None if place is None else self.distinct[place]


@dataclass(frozen=True)
class Measured:
    """A contest with what became of the chosen trial's runs."""

    contest: Contest
    runs: tuple[CellResult, ...]

    @property
    def failures(self) -> list[str]:
        """Why there are fewer results than seeds."""
        if self.contest.chosen is None:
            return [f"no setting could be trained: {self.contest.trials[0].failure}"]
        return [str(one.failure) for one in self.runs if one.results is None]


def run_sweep(plan: Plan, out: Path, train: Train) -> list[Measured]:
    """Search, choose and measure. Whatever is finished already is read and not done again."""
    contests = contests_of(plan, out)
    for number in range(max(contest.search.rounds for contest in contests)):
        asked = [contest for contest in contests if number < contest.search.rounds]
        new = {id(contest): _trials(plan, contest, number, out) for contest in asked}
        _judge(plan, [(contest, new[id(contest)]) for contest in asked], train, number)
        for contest in asked:
            contest.search.learn(number, [trial.score for trial in new[id(contest)]])
    return _measured(plan, contests, train)


def contests_of(plan: Plan, out: Path) -> list[Contest]:
    """Who is to be chosen among whom."""
    seeds = [plan.seeds] if plan.choose_for == "target" else [(seed,) for seed in plan.seeds]
    bayesian = plan.search == "bayesian" and any(plan.space_of(name) for name in plan.algorithms)
    journal = open_journal(out / "studies.journal") if bayesian else None
    found = []
    for algorithm in plan.algorithms:
        space = plan.space_of(algorithm)
        for target in plan.targets:
            for own in seeds:
                # Searches of seeds of their own differ; those of targets and algorithms try the same settings.
                seed = plan.search_seed if plan.choose_for == "target" else key_of(plan.search_seed, *own)
                if journal is None or not space:
                    search: Search = fixed_search(plan, algorithm, seed)
                else:
                    name = f"{algorithm} {target} {_digest(plan, own)}"
                    search = Study(name, space, plan.trials, plan.together, seed, journal)
                found.append(Contest(algorithm, target, own, search))
    return found


def _digest(plan: Plan, seeds: Sequence[int]) -> str:
    """The hash of all that must be equal for scores of earlier trials to count."""
    deciding = [
        plan.values,
        plan.settings,
        sorted(map(repr, plan.space.items())),
        plan.rule.name,
        list(seeds),
    ]
    text = json.dumps([*deciding, plan.search_seed], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _trials(plan: Plan, contest: Contest, number: int, out: Path) -> list[Trial]:
    """The trials of a round, which the contest has from now on."""
    new = [
        Trial(
            setting,
            tuple(plan.cell(contest.algorithm, contest.target, seed, setting, out) for seed in contest.seeds),
        )
        for setting in contest.search.proposals(number)
    ]
    contest.trials += new
    return new


def _judge(plan: Plan, asked: Sequence[tuple[Contest, list[Trial]]], train: Train, number: int) -> None:
    """Train the judges of the new trials, and note what they say."""
    judges = {
        id(trial): [judge for cell in trial.cells for judge in plan.rule.judges(cell, plan.domains)]
        for contest, trials in asked
        for trial in trials
        if contest.search.rounds > 1 or len(contest.distinct) > 1  # else there is nothing to choose
    }
    # By trial, so that the first ones of all algorithms are done first.
    most = max(len(trials) for _, trials in asked)
    who = {
        judge: (contest.algorithm, contest.target)
        for place in range(most)
        for contest, trials in asked
        if place < len(trials)
        for judge in judges.get(id(trials[place]), [])
    }
    rounds = max(contest.search.rounds for contest, _ in asked)
    stage = "choosing" if rounds == 1 else f"choosing, round {number + 1} of {rounds}"
    done = train(who, plan.rule.blind, stage) if who else {}
    for _, trials in asked:
        for trial in trials:
            if id(trial) in judges:
                heard = [done[judge.out] for judge in judges[id(trial)]]
                trial.score, trial.failure = judged_by(heard, plan.rule.score)


def _measured(plan: Plan, contests: Sequence[Contest], train: Train) -> list[Measured]:
    """Open the unseen domain for what was chosen, and for nothing else."""
    who = {
        cell: (contest.algorithm, contest.target)
        for contest in contests
        if contest.chosen is not None
        for cell in contest.chosen.cells
    }
    done = train(who, False, "measuring what was chosen") if who else {}
    found = []
    for contest in contests:
        cells = contest.chosen.cells if contest.chosen is not None else ()
        found.append(Measured(contest, tuple(done[cell.out] for cell in cells)))
        for place, cell in enumerate(cells):
            if done[cell.out].results is not None:
                _choice(plan, contest, place, cell).write(cell.out)
    return found


def _choice(plan: Plan, contest: Contest, place: int, chosen: Cell) -> ChoiceRecord:
    candidates = (
        Candidate(trial.cells[place].experiment.identity(), trial.setting, None, trial.score)
        for trial in contest.distinct
    )
    return ChoiceRecord(plan.rule.name, plan.rule.peeks, tuple(candidates), chosen.experiment.identity())

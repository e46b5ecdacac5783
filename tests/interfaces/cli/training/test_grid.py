"""`metavib train` with several targets, seeds, algorithms or values: a grid of runs."""

import contextlib
import json
import re
import shlex
import statistics

import pytest

from metavib.core.errors import UserError
from metavib.interfaces.cli.parsing import parsers
from metavib.interfaces.cli.training import choosing, stopping
from metavib.interfaces.cli.training.choosing import choice_in_words
from metavib.interfaces.cli.training.grid_cells import grid_of
from metavib.runs import grid
from metavib.runs.choices import Candidate, ChoiceRecord
from metavib.runs.cross_validation import Choice
from metavib.runs.one_run import train_and_measure

pytestmark = pytest.mark.stacks


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def command(training, out):
    """The arguments of a grid of short runs; no seed is named."""

    def arguments(*more, **options):
        words = training("--steps", 2, *more, **{"out": out} | options)
        position = words.index("--seed")
        return words[:position] + words[position + 2 :]

    return arguments


@pytest.fixture
def runs(metavib, command):
    """Trains a grid, and gives what it printed as JSON."""

    def call(*more, **options):
        status, out, err = metavib(*command(*more, "--json", **options))
        assert status == 0, err
        printed = json.loads(out)
        assert printed["failed"] == []
        return printed["runs"]

    return call


@pytest.fixture
def widths(monkeypatch):
    """How many runs were trained at a time, call by call."""
    seen = []

    def train_and_tell(stack, *others):
        seen.append(len(stack))
        return train_and_measure(stack, *others)

    monkeypatch.setattr(grid, "train_and_measure", train_and_tell)
    return seen


def test_time_and_memory_of_all_runs_are_told_before_the_first_step(metavib, command):
    _, _, err = metavib(*command("--target", "sketch,photo"))
    lines = err.splitlines()
    said = r"^2 runs, 0 of them finished already\. About \d+ s to go and \d+\.\d GB of memory"
    (told,) = [at for at, line in enumerate(lines) if re.search(said, line)]
    assert told < min(at for at, line in enumerate(lines) if line.startswith("training "))


def names(out):
    return sorted(path.name for path in out.iterdir())


def accuracy(run):
    return 100 * run["unseen"]["accuracy"]["mean"]


def rows_of(err, title):
    """The cells of the table below a title, row by row, without the line under its head."""
    lines = err[err.index(title) :].splitlines()[1:]
    lines = lines[: next((i for i, line in enumerate(lines) if not line or line.startswith("(")), None)]
    return [[text.strip() for text in line.split("  ") if text.strip()] for line in (lines[0], *lines[2:])]


# --- what makes a grid ------------------------------------------------------------------------------------


def test_all_targets_are_held_out_in_turn(runs, out):
    found = runs("--target", "all")
    assert [run["unseen_domain"] for run in found] == ["art", "cartoon", "photo", "sketch"]
    assert {run["seed"] for run in found} == {0}
    assert names(out) == [
        f"images-{target}-metavib-seed0" for target in ("art", "cartoon", "photo", "sketch")
    ]
    for run in found:
        path = out / run["run"]
        assert run.pop("run") == str(path)
        assert run == json.loads((path / "results.json").read_text())


def test_listed_targets_times_a_number_of_seeds(runs, out):
    found = runs("--target", "photo,art", "--seeds", 2)
    assert [(run["unseen_domain"], run["seed"]) for run in found] == [
        ("photo", 0),
        ("photo", 1),
        ("art", 0),
        ("art", 1),
    ]
    assert len(names(out)) == 4


def test_listed_seeds(runs, out):
    assert [run["seed"] for run in runs("--seeds", "3,5,3")] == [3, 5]
    assert names(out) == ["images-sketch-metavib-seed3", "images-sketch-metavib-seed5"]


def test_one_seed_for_all_runs(runs):
    assert {run["seed"] for run in runs("--target", "art,photo", "--seed", 7)} == {7}


def test_listed_algorithms(metavib, command, out):
    # Without the settings that one of them does not have.
    words = [
        word for word in command("--algorithm", "erm,metavib") if "draws" not in word and "width" not in word
    ]
    words = [
        word for word, after in zip(words, [*words[1:], ""], strict=True) if (word, after) != ("--set",) * 2
    ]
    status, printed, err = metavib(*words, "--json")
    assert status == 0, err
    assert [run["algorithm"] for run in json.loads(printed)["runs"]] == ["erm", "metavib"]
    assert names(out) == ["images-sketch-erm-seed0", "images-sketch-metavib-seed0"]
    assert [row[0] for row in rows_of(err, "Accuracy")[1:]] == ["erm", "metavib"]


def test_listed_values_of_settings(metavib, command, out):
    status, printed, err = metavib(
        *command("--set", "beta=.1, .01", "--set", "training.warmup=0,1", "--json")
    )
    assert status == 0
    experiments = [
        json.loads((out / run["run"] / "experiment.json").read_text())["experiment"]
        for run in json.loads(printed)["runs"]
    ]
    found = [(one["method"]["beta"], one["training"]["warmup"]) for one in experiments]
    assert found == [(0.1, 0), (0.1, 1), (0.01, 0), (0.01, 1)]
    assert names(out)[0] == "images-sketch-metavib-seed0-beta.01-training.warmup0"
    rows = [row[0] for row in rows_of(err, "Accuracy")[1:]]
    assert rows[0] == "metavib beta=0.1 training.warmup=0"
    assert len(set(rows)) == 4


def test_the_same_value_in_other_words_is_the_same_run(runs):
    assert len(runs("--set", "beta=.1,0.1,1e-1")) == 1


def test_a_domain_whose_name_has_a_comma_is_one_domain(runs, make_folder, tmp_path):
    folder = make_folder(tmp_path / "odd", domains="a,b c d")
    assert [run["unseen_domain"] for run in runs("--target", "a,b", data=folder)] == ["a,b"]


def test_a_configuration_file_may_name_the_dataset_and_the_seed(metavib, command, folder, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"dataset": str(folder), "seed": 5}))
    words = ["train", *command()[2:], "--config", tmp_path / "mine.json", "--json"]
    status, out, _ = metavib(*words, "--target", "art,photo")
    assert status == 0
    assert [run["seed"] for run in json.loads(out)["runs"]] == [5, 5]


def test_without_a_place_the_runs_go_below_runs(metavib, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = command("--seeds", 2)
    position = words.index("--out")
    assert metavib(*words[:position], *words[position + 2 :]).status == 0
    assert names(tmp_path / "runs") == ["images-sketch-metavib-seed0", "images-sketch-metavib-seed1"]


def test_all_targets_are_those_that_are_not_left_out(runs):
    found = runs("--target", "all", "--without", "photo", "--steps", 1)
    assert [run["unseen_domain"] for run in found] == ["art", "cartoon", "sketch"]
    assert {tuple(run["without"]) for run in found} == {("photo",)}


# --- how it is trained ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], [1, 1, 1]),  # on a CPU stacking does not pay
        (["--batch", 2], [2, 1]),
        (["--no-batch", "--batch", 3], [1, 1, 1]),
    ],
    ids=str,
)
def test_so_many_runs_are_trained_at_a_time(runs, widths, flags, expected):
    assert len(runs("--seeds", 3, *flags)) == 3
    assert widths == expected


def test_calling_a_finished_grid_again_trains_nothing_and_prints_the_same(metavib, command, widths):
    first = metavib(*command("--seeds", 2, "--json"))
    again = metavib(*command("--seeds", 2, "--json"))
    assert widths == [1, 1]
    assert again.out == first.out
    assert again.err.count("is finished already") == 2


# --- what is printed --------------------------------------------------------------------------------------


def test_the_table_has_means_and_deviations_over_seeds_and_the_mean_of_each_row(metavib, command):
    status, out, err = metavib(*command("--target", "art,photo", "--seeds", 3, "--json"))
    assert status == 0
    found = json.loads(out)["runs"]
    values = {
        target: [accuracy(run) for run in found if run["unseen_domain"] == target]
        for target in ("art", "photo")
    }
    means = [statistics.mean(own) for own in values.values()]
    head, row = rows_of(err, "Accuracy on the unseen domain")
    assert head == ["art", "photo", "mean"]
    expected = [f"{statistics.mean(own):.2f} +- {statistics.stdev(own):.2f}" for own in values.values()]
    assert row == ["metavib", *expected, f"{statistics.mean(means):.2f}"]
    assert rows_of(err, "Calibration error")[0] == head
    assert "6 runs." in err
    assert "selected by source-validation; protocol: folder" in err


def test_without_json_the_tables_are_all_there_is_on_stdout(metavib, command):
    status, out, err = metavib(*command("--seeds", 2))
    assert status == 0
    assert out.startswith("Accuracy on the unseen domain")
    assert "2 seeds = 2 runs." in err
    assert "Accuracy" not in err


def test_a_large_grid_is_named_with_its_time_and_asked_about(metavib, command, out, monkeypatch):
    monkeypatch.setattr("metavib.interfaces.cli.training.grid_cells.LARGE", 1)
    asked = []

    def refuse(question, *, yes, instead):
        asked.append((question, yes))
        raise UserError(f"nothing was trained. {instead}")

    monkeypatch.setattr("metavib.interfaces.cli.training.grid_cells.confirm", refuse)
    status, printed, err = metavib(*command("--target", "art,photo", "--seeds", "90"))
    assert (status, printed, asked) == (2, "", [("Train 180 runs?", False)])
    named, planned, refusal = err.splitlines()[-3:]
    assert named == "90 seeds x 2 targets = 180 runs."
    assert re.fullmatch(
        r"180 runs, 0 of them finished already\. About .+ to go and .+ by a short probe\.", planned
    )
    assert refusal.startswith("metavib: nothing was trained. For one run with seed 90: --seed 90.")
    assert not out.exists()


def test_a_list_of_one_seed_is_one_run(metavib, command):
    status, printed, err = metavib(*command("--seeds", "90,", "--json"))
    assert status == 0
    assert [run["seed"] for run in json.loads(printed)["runs"]] == [90]
    assert "1 run." in err


@pytest.mark.parametrize("seeds", ["1e9", "1000000000"])
def test_more_seeds_than_anybody_trains_are_one_line(refused, command, out, seeds):
    assert "--seeds must be" in refused(*command("--seeds", seeds))
    assert not out.exists()


def test_a_configuration_may_name_a_grid_and_what_is_typed_wins(metavib, folder, out, tmp_path):
    config = tmp_path / "grid.yaml"
    config.write_text(
        f"dataset: {folder}\ntarget: [art, photo]\nalgorithm: erm\nseeds: [4, 7]\nsteps: 1\nbackbone: digits\n"
        f"weights: none\nout: {out}\nno-batch: true\njson: true\nset: {{flip: 0}}\ncheckpoint_seconds: 5\n"
        "training: {images_per_domain: 8, validations: 1}\nevaluation: {repeats: 2}\n"
    )
    status, printed, err = metavib("train", "--config", config)
    assert status == 0, err
    assert {(run["unseen_domain"], run["seed"]) for run in json.loads(printed)["runs"]} == {
        (target, seed) for target in ("art", "photo") for seed in (4, 7)
    }
    recorded = json.loads((out / "images-art-erm-seed4" / "experiment.json").read_text())["experiment"]
    assert recorded["training"]["steps"] == 1
    assert recorded["training"]["images_per_domain"] == 8
    assert recorded["augmentation"]["flip"] == 0
    one = ("--target", "sketch", "--seed", "5", "--out", tmp_path / "one")
    typed = json.loads(metavib("train", "--config", config, *one).out)
    assert (typed["unseen_domain"], typed["seed"], typed["run"]) == ("sketch", 5, str(tmp_path / "one"))


def test_a_flag_of_a_configuration_that_will_not_do_is_named_with_the_file(refused, folder, out, tmp_path):
    (tmp_path / "bad.yaml").write_text("steps: many\n")
    line = refused("train", folder, "--target", "sketch", "--out", out, "--config", tmp_path / "bad.yaml")
    assert "bad.yaml, as flags: argument --steps: invalid int value: 'many'" in line


def test_runs_that_break_down_are_named_and_the_status_is_2(metavib, command, out):
    rates = ("--set", "learning_rate=1e-3,1e30", "--set", "clip_norm=0", "--set", "selection=last")
    status, printed, err = metavib(*command(*rates, "--steps", 3, "--batch", 2, "--json"))
    assert status == 2
    assert err.splitlines()[-1] == (
        "metavib: 1 of 2 runs broke down and have no results; the lines above say why."
    )
    found = json.loads(printed)
    assert len(found["runs"]) == len(found["failed"]) == 1
    broken = out / "images-sketch-metavib-seed0-learning_rate1e30"
    assert found["failed"][0]["run"] == str(broken)
    assert "broke down at step 1" in found["failed"][0]["why"]
    assert f"{broken} is left out: " in err
    assert rows_of(err, "Accuracy")[2] == ["metavib learning_rate=1e+30", "-", "-"]


def test_a_stopped_grid_prints_the_command_that_goes_on(metavib, command, out, monkeypatch):
    @contextlib.contextmanager
    def stop_after_three_steps():
        steps = iter(range(2))
        yield lambda: next(steps, None) is None

    with monkeypatch.context() as patch:
        patch.setattr(stopping, "stop_requested", stop_after_three_steps)
        flags = (
            "--target",
            "art,photo",
            "--set",
            "beta=.1,.2",
            "--batch",
            2,
            "--device",
            "cpu",
            "--skip-bad",
        )
        status, printed, err = metavib(*command(*flags, "--json"))
    assert (status, printed) == (130, "")
    last = err.splitlines()[-1]
    assert last.startswith("metavib: stopped after step 1 of 2; the runs are kept. To go on: metavib train ")
    words = shlex.split(last.partition("To go on: metavib ")[2])
    assert words[words.index("--seed") + 1] == "0"
    assert "--skip-bad" in words
    status, printed, err = metavib(*words, "--json")
    assert status == 0
    assert len(json.loads(printed)["runs"]) == len(names(out)) == 4
    assert err.count("is finished already") == 2  # the first stack was done


# --- settings chosen by the source domains ----------------------------------------------------------------

LEAVE_ONE_OUT = ("--select", "leave-one-domain-out")


def test_the_setting_that_does_best_on_the_source_domains_is_trained_and_on_record(
    metavib, command, out, widths
):
    words = command(*LEAVE_ONE_OUT, "--set", "beta=.1,10", "--set", "learning_rate=1e-3,1e-2", "--json")
    status, printed, err = metavib(*words)
    assert status == 0, err
    assert "12 runs on source domains to choose by, then 1." in err
    assert widths == [1] * 13
    found = {}
    for path in (out / "folds").glob("*/results.json"):
        fold = json.loads((path.parent / "experiment.json").read_text())["experiment"]
        assert fold["without"] == ["sketch"]
        assert sorted([*json.loads(path.read_text())["data"]["source_domains"], fold["target"]]) == [
            "art",
            "cartoon",
            "photo",
        ]
        key = fold["method"]["beta"], fold["training"]["learning_rate"]
        found.setdefault(key, []).append(json.loads(path.read_text())["unseen"]["accuracy"]["mean"])
    assert {key: len(values) for key, values in found.items()} == {
        (beta, rate): 3 for beta in (0.1, 10.0) for rate in (1e-3, 1e-2)
    }
    (run,) = json.loads(printed)["runs"]
    choice = json.loads((out / run["run"] / "choice.json").read_text())
    assert choice["chosen"] == run["experiment"]
    for candidate in choice["candidates"]:
        settings = candidate["settings"]
        key = settings["method.beta"], settings["training.learning_rate"]
        assert candidate["mean"] == pytest.approx(statistics.mean(found[key]))
    best = max(choice["candidates"], key=lambda candidate: candidate["mean"])  # the first of equals
    assert best["experiment"] == choice["chosen"]
    assert len(list(out.glob("images-*"))) == 1  # no other candidate is trained on all sources
    assert "(settings by leave-one-domain-out; selected by source-validation; protocol: folder" in err

    again = metavib(*words)
    assert widths == [1] * 13
    assert again.out == printed
    assert again.err.count("is finished already") == 13


def test_an_algorithm_that_lacks_the_setting_has_nothing_to_choose(metavib, command):
    flags = ("--algorithm", "erm,metavib", "--set", "beta=.1,10", "--steps", 1, "--json")
    status, printed, err = metavib(*command(*LEAVE_ONE_OUT, *flags))
    assert status == 0, err
    assert "6 runs on source domains to choose by, then 2." in err
    assert "erm, 'sketch' unseen, seed 0: nothing to choose" in err
    assert "metavib, 'sketch' unseen, seed 0: beta=0.1: " in err
    assert [run["algorithm"] for run in json.loads(printed)["runs"]] == ["erm", "metavib"]


def test_where_every_candidate_breaks_down_that_is_told_and_the_status_is_2(metavib, command, monkeypatch):
    monkeypatch.setattr(choosing, "choose", lambda questions, context, batch: ["why not"])
    status, printed, err = metavib(*command(*LEAVE_ONE_OUT, "--set", "beta=.1,10", "--json"))
    assert status == 2
    found = json.loads(printed)
    assert found["runs"] == []
    assert [one["why"] for one in found["failed"]] == ["why not"]
    assert err.splitlines()[-1].startswith("metavib: 1 of 1 runs broke down")


def test_a_choice_is_said_with_what_every_candidate_had(cell):
    settings = [{"method.beta": beta, "training.steps": 3} for beta in (0.1, 0.2, 0.3)]
    candidates = tuple(map(Candidate, "abc", settings, [None] * 3, [0.5, 0.625, None]))
    record = ChoiceRecord("leave-one-domain-out", peeks=False, candidates=candidates, chosen="b")
    said = choice_in_words(Choice(cell(), record))
    assert said == (
        "beta=0.1 steps=3: 50.00 %; beta=0.2 steps=3: 62.50 %, chosen; beta=0.3 steps=3: broke down"
    )


def test_a_stopped_choice_prints_the_command_that_goes_on(metavib, command, monkeypatch):
    @contextlib.contextmanager
    def stop_after_three_steps():
        steps = iter(range(2))
        yield lambda: next(steps, None) is None

    flags = (*LEAVE_ONE_OUT, "--average", "ema", "--set", "beta=.1,10")
    with monkeypatch.context() as patch:
        patch.setattr(stopping, "stop_requested", stop_after_three_steps)
        status, printed, err = metavib(*command(*flags, "--json"))
    assert (status, printed) == (130, "")
    words = shlex.split(err.splitlines()[-1].partition("the runs are kept. To go on: metavib ")[2])
    assert words[words.index("--select") + 1] == "leave-one-domain-out"
    status, printed, err = metavib(*words, "--json")
    assert status == 0
    assert err.count("is finished already") == 1  # the first fold was done
    assert [run["average"] for run in json.loads(printed)["runs"]] == ["ema"]


def test_a_value_that_is_said_twice_is_one(command):
    words = command("--set", "beta=.1,.2", "--set", "beta=.1,.2")
    cells, varied = grid_of(parsers()[0].parse_args([str(word) for word in words]))
    assert (len(cells), varied) == (2, ["beta"])


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seeds", "0"], "--seeds must be"),
        (["--seeds", "x"], "--seeds must be"),
        (["--seeds", "-1"], "--seeds must be"),
        (["--seeds", "3,,"], "--seeds must be"),
        (["--seeds", "2", "--seed", "1"], "--seed and --seeds cannot be given together"),
        (["--seeds", "2", "--batch", "0"], "--batch must be a whole number from 1"),
        (["--target", "art,nowhere"], "unknown target domain 'nowhere'"),
        (["--target", "art,"], "unknown target domain ''"),
        (["--algorithm", "metavib,erl"], "unknown algorithm 'erl'"),
        (["--set", "beta=.1,much"], "beta"),
        (["--set", "bta=.1,.2"], "unknown setting 'bta'"),
        (["--set", "=.1,.2"], "--set takes NAME=VALUE"),
        (["--seeds", "2", "--device", "abacus"], "abacus"),
        ([*LEAVE_ONE_OUT], "there is nothing to choose for leave-one-domain-out: give a setting several"),
        ([*LEAVE_ONE_OUT, "--seeds", "2", "--set", "beta=.1"], "there is nothing to choose"),
        ([*LEAVE_ONE_OUT, "--set", "beta=.1,.2", "--without", "art"], "at least 3 source domains"),
        ([*LEAVE_ONE_OUT, "--set", "beta=.1,.2", "--target", "sketsch"], "did you mean 'sketch'"),
        ([*LEAVE_ONE_OUT, "--set", "beta=.1,.2", "--device", "abacus"], "abacus"),
        (["--seeds", "2", "--select", "best"], "unknown selection rule 'best'"),
        (["--seeds", "2", "--average", "swat"], "did you mean 'swad'"),
        (["--target", "art,photo", "--without", "photo"], "unknown target domain 'photo'"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_nothing_is_written(refused, command, out, flags, said):
    assert said in refused(*command(*flags))
    assert not out.exists()


@pytest.mark.parametrize("target", ["all", "art,photo"])
def test_a_grid_needs_a_dataset(refused, target):
    assert "no dataset is given" in refused("train", "--target", target)


def test_a_setting_that_only_some_algorithms_have_is_for_those(metavib, command):
    status, out, err = metavib(*command("--algorithm", "erm,metavib", "--set", "beta=.1,.01", "--json"))
    assert status == 0, err
    names = sorted(run["run"].rpartition("-")[2] for run in json.loads(out)["runs"])
    assert names == ["beta.01", "beta.1", "seed0"]
    for row in ("metavib beta=0.1 ", "metavib beta=0.01 "):
        assert sum(line.startswith(row) for line in err.splitlines()) == 2  # accuracy and calibration
    assert "erm beta" not in err


def test_a_setting_that_no_algorithm_has_is_refused(refused, command):
    message = refused(*command("--algorithm", "erm,metavib", "--set", "betta=.1,.01"))
    assert "unknown setting 'betta'" in message

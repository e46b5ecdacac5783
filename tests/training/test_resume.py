"""A run is a function of its experiment: however it is stopped, going on equals never stopping."""

import json
import multiprocessing
import random
import re
import resource
import shlex
import signal
import subprocess
import time

import pytest
import torch
from places import PATIENCE
from safetensors.torch import load_file

from metavib.algorithms import ALGORITHMS
from metavib.core import atomic
from metavib.interfaces.cli.main import main
from metavib.runs.one_run import ExecutionContext, run_experiment
from metavib.training.checkpoint import steps as checkpoint_steps
from metavib.training.experiment import experiment_from
from metavib.training.loop import Stopped
from metavib.training.optimizer import Optimizer

pytestmark = pytest.mark.processes

AUGMENTED = {"flip": 0.5, "smallest_crop": 0.7, "colour": 0.3, "grey": 0.1}
AUGMENTED_FLAGS = [word for name, value in AUGMENTED.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def unstopped(metavib, training, tmp_path):
    """The model and the log of a run of the same experiment that nothing stopped."""

    def run(*more):
        assert metavib(*training(*more, out=tmp_path / "unstopped")).status == 0
        return what_counts(tmp_path / "unstopped")

    return run


def what_counts(run):
    return (run / "model" / "model.safetensors").read_bytes(), (run / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_resuming_equals_never_stopping(algorithm, folder, tmp_path):
    values = {"dataset": str(folder), "target": "sketch", "algorithm": algorithm, "seed": 1}
    values |= {"backbone": "digits", "weights": "none"}
    small = {"steps": 6, "images_per_domain": 8, "validations": 3, "repeats": 2}
    if algorithm in ("baseline", "vib", "metavib"):
        small |= {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}
    experiment = experiment_from(values, AUGMENTED | small)
    cpu = torch.device("cpu")
    run_experiment(experiment, tmp_path / "unstopped", ExecutionContext(cpu))
    for stop_after in (1, 3):  # steps from where the call began
        calls = iter(range(stop_after - 1))
        context = ExecutionContext(cpu, stop=lambda calls=calls: next(calls, None) is None)
        with pytest.raises(Stopped):
            run_experiment(experiment, tmp_path / "stopped", context)
    run_experiment(experiment, tmp_path / "stopped", ExecutionContext(cpu))
    assert what_counts(tmp_path / "stopped") == what_counts(tmp_path / "unstopped")


def test_ten_kills_at_random_moments_leave_no_trace(training, out, unstopped):
    command = training("--steps", 80, "--checkpoint-seconds", 0, *AUGMENTED_FLAGS)
    chance = random.Random(0)
    # Each is a real process; the server that they are forked from has imported torch already.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["metavib.interfaces.cli.training.one_run"])
    for _ in range(10):
        step = newest_step(out) + chance.randint(1, 3)
        process = server.Process(target=main, args=(command,))
        process.start()
        while process.is_alive() and newest_step(out) < step:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.02))  # about a step, with its checkpoint
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not (out / "results.json").exists()
    assert main(command) == 0
    assert what_counts(out) == unstopped("--steps", 80, *AUGMENTED_FLAGS)


def newest_step(run):
    return max(checkpoint_steps(run / "checkpoints"), default=0)


@pytest.mark.parametrize("files", [0, 1, 2])
def test_a_kill_before_the_first_step_leaves_a_run_that_can_go_on(
    metavib, training, out, unstopped, monkeypatch, files
):
    written = []

    def killed_after_some_files(path, text):
        if len(written) == files:
            raise KeyboardInterrupt
        written.append(path)
        path.write_text(text)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write_text", killed_after_some_files)
        assert metavib(*training()).status == 130
    out.mkdir(exist_ok=True)  # whoever is killed, and not stopped, leaves the empty directory too
    (out / ".experiment.json.x.part").write_text("half")
    assert metavib(*training()).status == 0
    assert what_counts(out) == unstopped()
    assert not list(out.rglob("*.part"))


def test_without_its_configuration_file_a_run_goes_on_and_writes_it_again(
    metavib, interrupted, training, out
):
    interrupted(*training(), after=1)
    text = (out / "config.yaml").read_text()
    (out / "config.yaml").unlink()
    assert metavib(*training()).status == 0
    assert (out / "config.yaml").read_text() == text


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    metavib, interrupted, training, out, unstopped
):
    interrupted(*training("--steps", 6, "--checkpoint-seconds", 0), after=4)
    newest = out / "checkpoints" / "00000004.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    status, _, err = metavib(*training("--steps", 6))
    assert status == 0
    assert "checkpoint of step 4 is damaged (sha256 differs); going on from step 3" in err
    assert what_counts(out) == unstopped("--steps", 6)


def test_a_disk_that_fills_up_costs_nothing_but_the_last_steps(
    metavib, interrupted, training, out, unstopped
):
    command = training("--steps", 6, "--checkpoint-seconds", 0)
    interrupted(*command, after=2)
    before = {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # no checkpoint fits
    try:
        status, _, err = metavib(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 2
    assert "Traceback" not in err
    assert "the disk is full" in err.splitlines()[-1]
    assert {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()} == before
    assert metavib(*command).status == 0
    assert what_counts(out) == unstopped("--steps", 6)


def test_a_signal_leaves_a_run_that_the_printed_command_finishes(program, training, out, unstopped):
    """Ctrl-C first; then the command that was printed gets a scheduler's SIGTERM; then it is left alone."""
    command = training("--steps", 60)
    for number in (signal.SIGINT, signal.SIGTERM):
        before = newest_step(out)
        process = subprocess.Popen([*program, *command], stderr=subprocess.PIPE, text=True)
        while process.poll() is None and last_logged_step(out) <= before:
            time.sleep(0.005)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, err
        assert before < newest_step(out) < 60
        printed = re.search(r"stopped after step \d+ of 60; the run is kept. To go on: metavib (.*)", err)
        assert printed is not None
        command = shlex.split(printed[1])
    assert main(command) == 0
    assert what_counts(out) == unstopped("--steps", 60)


def last_logged_step(run):
    """The step of the last whole line of the log."""
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def test_a_finished_run_says_so_and_nothing_is_touched(metavib, finished):
    times = {path: path.stat().st_mtime_ns for path in finished.run.rglob("*")}
    status, _, err = metavib(*finished.command)
    assert status == 0
    assert "is finished already" in err
    assert {path: path.stat().st_mtime_ns for path in finished.run.rglob("*")} == times


def test_without_a_seed_one_is_chosen_printed_recorded_and_kept(interrupted, metavib, training, out):
    command = training()
    position = command.index("--seed")
    del command[position : position + 2]
    err = interrupted(*command, after=1).err
    seed = json.loads((out / "experiment.json").read_text())["experiment"]["seed"]
    assert f"seed {seed}," in err
    status, _, err = metavib(*command)
    assert status == 0
    assert f"seed {seed}," in err
    assert json.loads((out / "results.json").read_text())["seed"] == seed


def test_a_second_process_is_refused_while_the_first_trains(refused, training, monkeypatch):
    lines = []
    step = Optimizer.step

    def step_while_another_starts(self, *arguments):
        if not lines:
            lines.append(refused(*training()))
        step(self, *arguments)

    monkeypatch.setattr(Optimizer, "step", step_while_another_starts)
    assert main(training()) == 0
    assert "in use by another process" in lines[0]


# --- numbers that are not finite --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "steps", "said"),
    [
        ("1e30", 3, r"broke down at step 1: classification = .*, bottleneck = .*, gradient norm = "),
        ("1e39", 3, "made parameters that are not finite"),  # more than a float32 holds
        ("1e30", 1, "probabilities are not finite"),  # noticed when the model is measured
    ],
)
def test_training_that_breaks_down_keeps_finite_parameters_only(metavib, training, out, rate, steps, said):
    flags = ["--set", f"learning_rate={rate}", "--set", "clip_norm=0", "--set", "selection=last"]
    status, _, err = metavib(*training("--steps", steps, "--checkpoint-seconds", 0, *flags))
    assert status == 2
    assert "Traceback" not in err
    assert re.search(said, err.splitlines()[-1])
    assert "lower learning_rate" in err.splitlines()[-1]
    for path in (out / "checkpoints").glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            assert tensor.isfinite().all(), name

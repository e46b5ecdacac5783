"""The compiled step: it is the eager one, and whatever goes wrong costs a line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT

from benchmarks.workloads import Noise, trainee
from metavib.training import compiling
from metavib.training.step import Program, Trainee

CPU = torch.device("cpu")
TOLERANCE = 1e-5
Functions = Callable[..., Any]


@pytest.fixture
def run() -> Callable[..., Trainee]:
    """A run on images of noise."""

    def opened(seed: int = 0, backbone: str = "digits-domainbed", steps: int = 1000) -> Trainee:
        values = {"dataset": "noise", "target": "a", "algorithm": "erm", "seed": seed}
        settings = {"images_per_domain": 7, "domains_per_episode": 2, "steps": steps}
        return trainee(values | {"backbone": backbone, "weights": "none"}, settings, Noise(per_class=3), CPU)

    return opened


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Functions], None]]:
    """Puts something in the place of torch's compiler."""

    def replace(made: Functions) -> None:
        monkeypatch.setattr(compiling.torch, "compile", lambda function, **options: made(function))

    monkeypatch.setattr(compiling, "_TRIED", set())
    monkeypatch.setattr(compiling, "_FAILED", set())
    yield replace
    compiling._copy_for.cache_clear()


def stepped(runs: list[Trainee], **options: Any) -> Program:
    program = Program(runs, **options)
    for _ in range(2):
        program.step()
    return program


def same(first: Program, second: Program) -> bool:
    return all(torch.equal(first.parameters[name], value) for name, value in second.parameters.items())


@pytest.mark.parametrize("count", [1, 2])
def test_a_compiler_that_fails_costs_one_line(
    run: Any, compiler: Any, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    def failing(function: Functions) -> Functions:
        def call(*given: Any) -> Any:
            raise RuntimeError("no such operator\nand much that helps nobody")

        return call

    compiler(failing)
    runs = [run(seed) for seed in range(count)]
    program = stepped(runs, compiled=True)
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == ["metavib: the step is not compiled and stays eager, slower: no such operator"]
    assert same(program, stepped([run(seed) for seed in range(count)], compiled=False))
    stepped(
        [run(5 + seed) for seed in range(count)], compiled=True
    )  # of the same kind: it need not fail again
    assert capsys.readouterr().err == ""


def test_a_compiled_step_with_other_losses_is_not_used(
    run: Any, compiler: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler(lambda function: lambda *given: {name: 1.1 * value for name, value in function(*given).items()})
    program = stepped([run()], compiled=True)
    assert "its classification would be" in capsys.readouterr().err
    assert not program.compiled.wanted
    assert same(program, stepped([run()], compiled=False))


@pytest.mark.parametrize("count", [1, 2])
def test_a_compiled_step_is_announced_once_and_used(
    run: Any, compiler: Any, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    calls = []

    def counting(function: Functions) -> Functions:
        def call(*given: Any) -> Any:
            calls.append(function.__name__)
            return function(*given)

        return call

    compiler(counting)
    program = stepped([run(seed) for seed in range(count)], compiled=True)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "compiling the step" in said[0]
    assert "was compiled in" in said[1]
    assert len(calls) == 2
    assert program.compiled.tried
    stepped([run(3 + seed) for seed in range(count)], compiled=True)
    assert len(calls) == 4
    assert capsys.readouterr().err == ""


def test_memory_that_runs_out_is_no_fault_of_the_compiler(run: Any, compiler: Any) -> None:
    def short(function: Functions) -> Functions:
        def call(*given: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        return call

    compiler(short)
    with pytest.raises(torch.OutOfMemoryError):  # a grid is divided then
        stepped([run()], compiled=True)


def test_on_a_cpu_and_for_networks_with_their_own_kernels_nothing_is_compiled(run: Any) -> None:
    plain, own = run().algorithm, run(backbone="digits").algorithm
    gpu = torch.device("cuda")
    assert not Program([run()]).compiled.wanted
    assert not compiling.pays(plain, CPU, 1000)
    assert compiling.pays(plain, gpu, 1000)
    assert not compiling.pays(plain, gpu, compiling.FEWEST_STEPS - 1)
    assert not compiling.pays(own, gpu, 1000)
    program = Program([run(backbone="squeezenet")], compiled=True)
    assert not program.algorithms[0].backbone.has_own_kernels
    program.compiled.give_up("no reason")
    assert program.algorithms[0].backbone.has_own_kernels


def test_kinds_of_algorithms_are_compiled_apart(run: Any) -> None:
    first, second, other = run(), run(seed=1), run(backbone="digits")
    copies = [
        compiling._copy_for(compiling.losses, *compiling._shape_of(one.algorithm))
        for one in (first, second, other)
    ]
    assert copies[0].__code__ is copies[1].__code__
    assert copies[0].__code__ is not copies[2].__code__


def test_the_compiler_has_a_time_limit() -> None:
    alarm = signal.getsignal(signal.SIGALRM)
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        with pytest.raises(compiling.TooLong, match="longer than 0 s"), compiling.at_most(0.05):
            time.sleep(100)
        with compiling.at_most(1000.0):
            pass
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, *left)


def test_an_alarm_of_others_is_left_alone() -> None:
    former = signal.signal(signal.SIGALRM, lambda *_: None)
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with compiling.at_most(1000.0):
            assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.signal(signal.SIGALRM, former)
        signal.setitimer(signal.ITIMER_REAL, *left)


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("algorithm", "network", "runs", "backend"),
    [
        ("metavib", "digits-domainbed", 1, "inductor"),
        ("metavib", "timm:test_vit", 1, "aot_eager"),
        ("mldg", "timm:test_resnet", 1, "aot_eager"),
        ("metavib", "timm:test_efficientnet", 2, "aot_eager"),
    ],
)
def test_the_compiled_step_is_the_eager_one(
    algorithm: str, network: str, runs: int, backend: str, tmp_path: Path
) -> None:
    """Also of second order, and of stacked runs. The whole of it is one graph, for all runs of its kind."""
    if ":" in network:
        pytest.importorskip("timm")
    words = [
        sys.executable,
        str(ROOT / "tests" / "compiled_steps.py"),
        algorithm,
        network,
        str(runs),
        backend,
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["compiled"], done.stderr
    assert (found["graphs"], found["further"], found["breaks"]) == (1, 0, 0)
    assert found["losses"] < 10 * TOLERANCE
    assert found["weights"] < 10 * TOLERANCE

"""What only a GPU can show: `make test-gpu`, on a machine that has one and nothing but torch.

It is written with unittest, which is always there. pytest runs it too, and skips it by name without a GPU.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.workloads import Noise, trainee
from metavib.algorithms import ALGORITHMS
from metavib.data.store.storage import ImageStore
from metavib.interfaces.cli.main import main
from metavib.nn import kernels
from metavib.nn.randomness import key_of, normal
from metavib.training.step import EAGER_STEPS, Program, Trainee

CUDA = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS = EAGER_STEPS + 6
SMALL = {"images_per_domain": 14, "latent_draws": 2, "classifier_draws": 2, "latent_width": 16}


def run_of(
    algorithm: str = "metavib",
    *,
    seed: int = 0,
    target: str = "a",
    precision: str = "float32",
    backbone: str = "digits",
    **settings: Any,
) -> Trainee:
    """A run on images of noise, with the digit network or another."""
    values = {"dataset": "noise", "target": target, "algorithm": algorithm, "seed": seed}
    values |= {"backbone": backbone, "weights": "none"}
    own = {name: value for name, value in SMALL.items() if name in _settings_of(algorithm)}
    assignments = {**own, "images_per_domain": 14, "precision": precision, **settings}
    return trainee(values, assignments, Noise(per_class=6), CUDA)


def _settings_of(algorithm: str) -> set[str]:
    return set(ALGORITHMS[algorithm].Config.__dataclass_fields__)


def trained(runs: list[Trainee], **options: Any) -> list[dict[str, torch.Tensor]]:
    """The parameters of the runs after some steps, the last of them in a CUDA graph."""
    program = Program(runs, **options)
    for _ in range(STEPS):
        program.step()
    assert (program.graph is not None) == options.get("capture", True)
    torch.cuda.synchronize()
    return [{name: own.detach().clone() for name, own in a.named_parameters()} for a in program.algorithms]


@unittest.skipUnless(torch.cuda.is_available(), "no GPU is here")
class OnAGPU(unittest.TestCase):
    """The step, the kernels, the way of images, and a run by the command line."""

    def assert_same(self, found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            torch.testing.assert_close(
                found[name], values, rtol=0, atol=tolerance, msg=lambda text, n=name: n + text
            )

    def test_a_step_in_a_cuda_graph_does_what_an_eager_one_does(self) -> None:
        """The first steps of the graph's program run on a side stream, the others are replayed."""
        for algorithm in ("erm", "metavib", "mldg"):
            with self.subTest(algorithm):
                (captured,) = trained([run_of(algorithm)])
                (eager,) = trained([run_of(algorithm)], capture=False)
                self.assert_same(captured, eager, 1e-4)

    def test_a_stacked_run_is_the_run_alone(self) -> None:
        for algorithm in ("erm", "vib", "metavib"):
            with self.subTest(algorithm):
                cells = [(0, "a"), (1, "b"), (2, "a")]
                stacked = trained([run_of(algorithm, seed=seed, target=target) for seed, target in cells])
                for own, (seed, target) in zip(stacked, cells, strict=True):
                    (alone,) = trained([run_of(algorithm, seed=seed, target=target)])
                    self.assert_same(own, alone, 1e-3)

    def test_bfloat16_trains_close_to_float32(self) -> None:
        low, high = run_of(precision="bfloat16"), run_of(precision="float32")
        assert low.algorithm.backbone.precision == torch.bfloat16
        assert high.algorithm.backbone.precision is None
        programs = [Program([low]), Program([high])]
        for program in programs:
            program.step()
        first, second = (program.values() for program in programs)
        for name, values in second.items():
            assert np.isfinite(first[name]).all()
            np.testing.assert_allclose(first[name], values, rtol=0.05, atol=0.02)
        assert any(first[name] != second[name] for name in first), "bfloat16 was not used"

    def test_a_compiled_step_is_captured_and_does_what_an_eager_one_does(self) -> None:
        """One run and a stack, in both precisions; a network with kernels of its own does without them."""
        for network, algorithm, precision, count in (
            ("digits-domainbed", "metavib", "float32", 1),
            ("digits-domainbed", "metavib", "bfloat16", 1),
            ("digits-domainbed", "erm", "float32", 2),
            ("resnet18", "mldg", "float32", 1),
            ("squeezenet", "metavib", "bfloat16", 1),
        ):
            with self.subTest(network=network, algorithm=algorithm, precision=precision, runs=count):
                given = {"precision": precision, "backbone": network, "learning_rate": 1e-5}
                programs = []
                for compiled in (True, False):
                    program = Program(
                        [run_of(algorithm, seed=seed, **given) for seed in range(count)], compiled=compiled
                    )
                    for _ in range(STEPS):
                        program.step()
                    assert program.graph is not None
                    assert program.compiled.wanted == compiled, "the compiler gave up"
                    programs.append(program)
                torch.cuda.synchronize()
                found, expected = (program.values() for program in programs)
                most = 0.05 if precision == "bfloat16" else 1e-3
                for name, values in expected.items():
                    np.testing.assert_allclose(found[name], values, rtol=most, atol=most)

    def test_photographs_are_compiled_without_being_asked(self) -> None:
        assert Program([run_of(backbone="resnet18", steps=1000)]).compiled.wanted
        assert not Program([run_of(steps=1000)]).compiled.wanted
        assert not Program([run_of(backbone="resnet18", steps=10)]).compiled.wanted

    def test_images_that_are_read_ahead_through_locked_memory_train_as_those_on_the_device(self) -> None:
        streamed = run_of()
        store = streamed.sources.train.store
        other = ImageStore(store.parts, CUDA, channels=store.shape[0])
        other.stay_in_files()
        streamed.sources.train.store = other
        program = Program([streamed])
        for _ in range(STEPS):
            program.step()
        assert program.prefetcher is not None
        torch.cuda.synchronize()
        found = {name: own.detach() for name, own in program.algorithms[0].named_parameters()}
        (resident,) = trained([run_of()])
        self.assert_same(found, resident, 1e-4)

    def test_draws_are_those_of_the_cpu(self) -> None:
        """The kernel and its twin in torch's operators draw the same numbers from the same key."""
        assert kernels.usable()
        key = torch.tensor([key_of(3, "noise", "latent"), key_of(4, "noise", "latent")])
        torch.testing.assert_close(
            normal(key.to(CUDA), (5, 7)).cpu(), normal(key, (5, 7)), rtol=1e-4, atol=1e-5
        )

    def test_a_folder_is_trained_and_its_model_answers_on_the_cpu_as_on_the_gpu(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            folder, run = Path(place) / "images", Path(place) / "run"
            random = np.random.default_rng(0)
            for domain in ("photo", "art", "sketch"):
                for number, name in enumerate(("cat", "dog")):
                    (folder / domain / name).mkdir(parents=True)
                    for index in range(8):
                        pixels = random.integers(0, 120, (28, 28, 3), dtype=np.uint8)
                        pixels[:, 14 * number :][:, :14] += 120
                        Image.fromarray(pixels).save(folder / domain / name / f"{index}.png")
            words = [
                "train",
                str(folder),
                "--target",
                "sketch",
                "--seed",
                "1",
                "--steps",
                "20",
                "--out",
                str(run),
            ]
            words += ["--backbone", "digits", "--weights", "none", "--set", "images_per_domain=8"]
            words += ["--device", "cuda"]
            assert main(words) == 0
            image = str(folder / "sketch" / "dog" / "0.png")
            answers = [self._answer(["predict", str(run), image, "--device", own]) for own in ("cuda", "cpu")]
            assert answers[0]["label"] == answers[1]["label"]
            assert abs(answers[0]["probability"] - answers[1]["probability"]) < 0.01

    def _answer(self, words: list[str]) -> dict[str, Any]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main([*words, "--json"]) == 0
        return json.loads(out.getvalue().splitlines()[0])


if __name__ == "__main__":
    unittest.main()

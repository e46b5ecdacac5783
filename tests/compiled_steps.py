"""Steps by torch.compile and the steps they stand for, in a process of its own: shapes are not checked here.

    python tests/compiled_steps.py ALGORITHM NETWORK RUNS BACKEND

prints, as one line of JSON, the largest differences of losses and weights after some steps, whether the step was
compiled, and how many graphs the compiler saw.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from benchmarks.workloads import Noise, trainee
from metavib.training import compiling
from metavib.training.step import Program, Trainee

STEPS = 3


def run_of(algorithm: str, network: str, seed: int) -> Trainee:
    """A run on images of noise."""
    values: dict[str, Any] = {"dataset": "noise", "target": "a", "algorithm": algorithm, "seed": seed}
    values |= {"backbone": network, "weights": "none"}
    values |= {"image_size": 32} if ":" in network else {}
    settings: dict[str, Any] = {"images_per_domain": 7, "domains_per_episode": 2, "learning_rate": 1e-5}
    if algorithm == "metavib":
        settings |= {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}
    return trainee(values, settings, Noise(per_class=3), torch.device("cpu"))


def stepped(runs: list[Trainee], backend: str | None) -> tuple[Program, list[dict[str, list[float]]]]:
    """The runs after some steps, and the losses of each step."""
    program = Program(runs, compiled=backend is not None)
    if backend is not None:
        program.compiled.backend, program.compiled.longest = backend, 1500.0  # a busy machine takes its time
    seen = []
    for _ in range(STEPS):
        program.step()
        seen.append(program.values())
    return program, seen


def main(algorithm: str, network: str, count: str, backend: str) -> None:
    """Compare."""
    torch.set_num_threads(1)
    numbers = range(int(count))
    eager, expected = stepped([run_of(algorithm, network, seed) for seed in numbers], None)
    compiled, found = stepped([run_of(algorithm, network, seed) for seed in numbers], backend)
    # The next runs of the same kind are not compiled again.
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    again, _ = stepped([run_of(algorithm, network, seed + 7) for seed in numbers], backend)
    losses = max(
        abs(one - other)
        for mine, others in zip(found, expected, strict=True)
        for name in others
        for one, other in zip(mine[name], others[name], strict=True)
    )
    weights = max(
        float((compiled.parameters[name] - value).abs().max()) for name, value in eager.parameters.items()
    )
    more = torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs
    print(
        json.dumps(
            {
                "losses": losses,
                "weights": weights,
                "compiled": compiled.compiled.wanted and compiled.compiled.tried,
                "graphs": graphs,
                "further": more,
                "breaks": len(torch._dynamo.utils.counters["graph_break"]),
                "announced_once": again.compiled.kind in compiling._TRIED,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The information plane is recorded beside training: it changes nothing, and no interruption shows in it."""

import json
import math
from dataclasses import replace

import pytest
import torch

from metavib.data.opening import LabelledRows
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import Preprocessing
from metavib.interfaces.cli.training import grid
from metavib.models.directory import build_algorithm, preprocessing_of
from metavib.nn.functional.information import symbol_entropy
from metavib.runs import one_run as runner
from metavib.runs.grid import run_grid
from metavib.runs.one_run import ExecutionContext
from metavib.training import information_recording
from metavib.training.information_recording import LAYERS, probe_of, recording_steps, through_noise
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory

CPU = torch.device("cpu")
NUMBERS = ["pairwise_input", "pairwise_label", "pairwise_shuffled", "binned_input", "binned_label"]


def trained(cells, batch=1, **context):
    return run_grid(cells, ExecutionContext(CPU, **context), batch=batch)


def recorded(one):
    return RunDirectory(one.out).read_information()


def file_of(one):
    return (one.out / "information.jsonl").read_bytes()


def left_by(one):
    """The weights and the log of a run."""
    return (one.out / "model" / "model.safetensors").read_bytes(), (one.out / "metrics.jsonl").read_bytes()


# --- what is recorded -------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["baseline", "vib", "metavib"])
def test_every_layer_is_recorded_before_the_first_step_and_evenly_to_the_last(cell, algorithm):
    run = cell(algorithm=algorithm, steps=6, record_information=3, validation_share=0.5)
    trained([run])
    records = recorded(run)
    assert [record["step"] for record in records] == [0, 2, 4, 6]
    for record in records:
        assert list(record) == ["step", "images", "label_entropy", *LAYERS]
        assert record["images"] == 12  # half of the eight images of each source domain
        assert record["label_entropy"] == pytest.approx(1)
        for layer in LAYERS:
            assert list(record[layer]) == NUMBERS
            for name, bits in record[layer].items():
                assert bits <= (math.log2(12) if name.endswith("input") else 1) + 1e-9
                assert bits >= -0.1


@pytest.mark.parametrize(
    ("records", "steps", "expected"),
    [
        (0, 10, []),
        (1, 10, [0, 10]),
        (2, 5, [0, 2, 5]),
        (50, 3, [0, 1, 2, 3]),
        (50, 300, list(range(0, 301, 6))),
    ],
)
def test_records_are_evenly_spread(records, steps, expected):
    assert sorted(recording_steps(records, steps)) == expected


def test_without_the_setting_there_is_no_file(cell):
    run = cell(algorithm="metavib")
    trained([run])
    assert not (run.out / "information.jsonl").exists()


@pytest.mark.parametrize(("flag", "times"), [([], None), ([50], None), ([2], 3)])
def test_the_flag_of_the_command_line(metavib, training, tmp_path, flag, times):
    assert metavib(*training("--record-information", *flag)).status == 0
    run = tmp_path / "run"
    settings = json.loads((run / "experiment.json").read_text())["experiment"]["training"]
    assert settings["record_information"] == (flag or [50])[0]
    assert len(RunDirectory(run).read_information()) == (times or 4)  # no more often than there are steps


def test_the_command_that_goes_on_with_a_grid_has_the_flag(metavib, training, monkeypatch):
    def stopped(*others, **named):
        raise Stopped("stopped")

    monkeypatch.setattr(grid, "run_grid", stopped)
    outcome = metavib(*training("--target", "art,photo", "--record-information"))
    assert outcome.status == 130
    assert "--record-information 50" in outcome.err


def test_a_negative_number_of_records_is_refused(refused, training):
    assert "record_information must be" in refused(*training("--record-information=-1"))


# --- it changes nothing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("average", ["none", "ema"])
def test_weights_and_log_are_the_same_with_and_without(cell, average):
    watched, alone = (
        cell(algorithm="metavib", steps=5, average=average, record_information=count) for count in (5, 0)
    )
    trained([watched, alone])
    assert len(recorded(watched)) == 6
    assert left_by(watched) == left_by(alone)


def test_it_is_measured_at_the_weights_of_the_moment_and_not_at_averaged_ones(cell):
    averaged, plain = (
        cell(algorithm="metavib", steps=5, record_information=5, average=how) for how in ("ema", "none")
    )
    trained([averaged, plain])
    assert file_of(averaged) == file_of(plain)
    assert left_by(averaged) != left_by(plain)


def test_the_unseen_domain_is_not_opened_for_it(cell, monkeypatch):
    opened = []
    open_target = runner.open_target

    def tell(dataset, split, *others, **named):
        opened.append(len(recorded(run)))
        return open_target(dataset, split, *others, **named)

    monkeypatch.setattr(runner, "open_target", tell)
    run = cell(algorithm="metavib", record_information=2)
    trained([run])
    assert opened == [3]  # once, when all is recorded


def test_an_oracle_too_is_watched_on_source_validation_images(cell):
    oracle, honest = (
        cell(algorithm="metavib", record_information=4, selection=rule)
        for rule in ("oracle", "source-validation")
    )
    trained([oracle, honest])
    assert file_of(oracle) == file_of(honest)


# --- interruptions and stacks -----------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [(1,), (2, 3), (3, 1, 1)])
def test_an_interrupted_run_leaves_the_same_file(cell, stops):
    interrupted, unstopped = (
        cell(algorithm="metavib", place=place, steps=8, record_information=4)
        for place in ("interrupted", "unstopped")
    )
    trained([unstopped])
    for after in stops:  # steps from where the call began
        calls = iter(range(after - 1))
        with pytest.raises(Stopped):
            trained([interrupted], stop=lambda calls=calls: next(calls, None) is None)
    trained([interrupted])
    assert file_of(interrupted) == file_of(unstopped)


def test_what_was_recorded_after_the_last_checkpoint_is_recorded_again_once(cell):
    killed, unstopped = (
        cell(algorithm="metavib", place=place, steps=4, record_information=4)
        for place in ("killed", "unstopped")
    )
    trained([unstopped])

    def power_failure(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # without a checkpoint: the run begins again
        trained([killed], show=power_failure)
    assert [record["step"] for record in recorded(killed)] == [0, 1, 2, 3]
    with (killed.out / "information.jsonl").open("a") as file:
        file.write('{"step": 4, "ima')  # a line that the kill cut off
    trained([killed])
    assert file_of(killed) == file_of(unstopped)


def test_stacked_runs_are_recorded_as_they_are_alone(cell):
    together, alone = (
        [
            cell(target, seed, "metavib", place, record_information=2, beta=beta)
            for target, seed, beta in (("art", 1, 0.01), ("photo", 2, 1.0))
        ]
        for place in ("together", "alone")
    )
    said = []
    trained(together, 2, say=said.append)
    trained(alone, 1)
    assert "2 runs are trained as one program." in said
    for stacked, single in zip(together, alone, strict=True):
        for mine, own in zip(recorded(stacked), recorded(single), strict=True):
            assert (mine["step"], mine["images"]) == (own["step"], own["images"])
            for layer in LAYERS:
                for name in ("pairwise_input", "pairwise_label", "pairwise_shuffled"):
                    assert mine[layer][name] == pytest.approx(own[layer][name], abs=1e-3)
    assert recorded(together[0]) != recorded(together[1])


def test_a_run_that_stopped_early_is_not_recorded_any_more(cell):
    settings = {"steps": 8, "validations": 8, "record_information": 8}
    patient = cell("art", 1, "metavib", patience=0, **settings)
    hasty = cell("art", 1, "metavib", patience=1, **settings)
    trained([patient, hasty], 2)
    last = recorded(hasty)[-1]["step"]
    assert last == RunDirectory(hasty.out).read_log()[-1]["step"] < 8
    assert recorded(hasty) == recorded(patient)[: last + 1]


# --- where there is nothing to record ---------------------------------------------------------------------


def test_an_algorithm_without_a_bottleneck_says_so_once_and_goes_on(cell):
    cells = [cell(target, record_information=2) for target in ("art", "photo")]
    said = []
    done = trained(cells, 2, say=said.append)
    assert said.count("ERM has no bottleneck, so its information plane is not recorded.") == 1
    assert all(one.results is not None for one in done)
    assert not any((one.out / "information.jsonl").exists() for one in cells)


def test_without_validation_images_nothing_is_recorded_and_a_line_says_why(cell):
    run = cell(algorithm="metavib", record_information=2, validation_share=0.0, selection="last")
    said = []
    (done,) = trained([run], say=said.append)
    assert any("raise validation_share" in line for line in said)
    assert done.results is not None
    assert not (run.out / "information.jsonl").exists()


def test_weights_that_have_gone_astray_are_not_recorded(probe):
    assert probe.measure() is not None
    with torch.no_grad():
        probe.network.hidden_2.weight[0, 0] = math.nan
    assert probe.measure() is None


# --- how it is measured -----------------------------------------------------------------------------------


@pytest.fixture
def validation():
    """Forty images of noise with four classes."""
    pixels = torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8, generator=torch.manual_seed(0))
    store = ImageStore([pixels.numpy()], CPU)
    digits = Preprocessing(28, 1, (0.5,), (0.5,))
    return LabelledRows(store, digits, torch.arange(40), torch.arange(40) % 4)


@pytest.fixture
def probe(cell, validation):
    method = cell(algorithm="metavib").experiment.method
    algorithm = build_algorithm("metavib", method, "digits", "none", 4, 1)
    validation = replace(validation, preprocessing=preprocessing_of(algorithm.backbone))
    return probe_of(algorithm, validation, 1)


def test_of_many_images_some_are_chosen_by_the_seed(probe, validation, monkeypatch):
    monkeypatch.setattr(information_recording, "LARGEST_SAMPLE", 12)
    first, again, other = (probe_of(probe.algorithm, validation, seed).images for seed in (1, 1, 2))
    assert len(first) == 12
    assert torch.equal(first.rows, again.rows)
    assert not torch.equal(first.rows, other.rows)
    assert torch.equal(first.labels, validation.labels[first.rows])  # each with its own label


def test_shuffled_labels_are_the_same_labels_in_another_order(probe):
    labels = probe.images.labels
    assert symbol_entropy(labels[probe.shuffle]) == symbol_entropy(labels)
    assert not torch.equal(labels[probe.shuffle], labels)


def test_noise_is_a_share_of_the_variance_of_the_layer_and_comes_on_top_of_its_own():
    values = torch.tensor([[0.0, 1.0], [4.0, 1.0]])  # variances 4 and 0
    noise = information_recording.NOISE * 4
    assert through_noise(values).log_variance.exp().flatten().tolist() == pytest.approx([noise] * 4)
    own = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    with_own = through_noise(values, own).log_variance.exp()
    assert with_own.flatten().tolist() == pytest.approx([noise + v for v in (1, 2, 3, 4)])


def test_a_layer_that_says_the_same_of_all_images_knows_nothing(probe):
    with torch.no_grad():
        for layer in (probe.network.hidden_1, probe.network.hidden_2, probe.network.output):
            layer.weight.zero_()
    record = probe.measure()
    for layer in LAYERS:
        assert list(record[layer].values()) == pytest.approx([0] * 5, abs=1e-9)


def test_a_hidden_layer_that_only_grows_keeps_its_information(probe):
    before = probe.measure()["hidden_1"]
    with torch.no_grad():  # ELU is the identity where it is positive
        probe.network.hidden_1.bias += 1e3
        shifted = probe.measure()["hidden_1"]
        probe.network.hidden_1.weight *= 7
        grown = probe.measure()["hidden_1"]
    assert grown["pairwise_input"] == pytest.approx(shifted["pairwise_input"], rel=1e-3)
    assert before["pairwise_input"] > 0


def test_the_noise_of_the_code_hides_what_it_knows(probe):
    certain = probe.measure()
    with torch.no_grad():
        probe.network.output.bias[16:] += 20  # log variance, cut off at 10
    drowned = probe.measure()
    assert drowned["code"]["pairwise_input"] < 0.1 < certain["code"]["pairwise_input"]
    assert drowned["hidden_2"] == certain["hidden_2"]

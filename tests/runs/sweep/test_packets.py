"""How cells are parcelled out."""

import json

import pytest
import torch

from metavib.runs.capacity import WIDEST
from metavib.runs.sweep.packets import Packet, PacketOptions, packet_from, packets_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def widths(packets):
    return [len(packet.cells) for packet in packets]


def test_a_packet_is_plain_json_and_back(cell):
    packet = Packet(
        (cell("art"), cell("photo", algorithm="metavib", beta=0.3)), PacketOptions(device="cpu", blind=True)
    )
    assert packet_from(json.loads(json.dumps(packet.to_json()))) == packet
    assert packet.again().attempt == 1
    assert packet.again().cells == packet.cells


def test_on_a_cpu_every_run_goes_alone_in_the_order_that_was_asked_for(cell):
    cells = [cell("sketch"), cell("art", algorithm="vib"), cell("art"), cell("photo")]
    packets = packets_of(cells, PacketOptions(), CPU, 2)
    assert [packet.cells[0] for packet in packets] == cells
    assert widths(packets) == [1] * 4


def test_on_a_gpu_runs_that_may_be_stacked_are_divided_among_the_workers(cell):
    cells = [cell(target, seed) for target in ("art", "photo") for seed in range(4)]
    cells.insert(3, cell("art", algorithm="vib"))
    assert widths(packets_of(cells, PacketOptions(), GPU, 3)) == [3, 1, 3, 2]
    assert widths(packets_of(cells, PacketOptions(batch=2), CPU, 3)) == [2, 2, 1, 2, 2]
    assert widths(packets_of(cells, PacketOptions(batch=1), GPU, 1)) == [1] * 9
    many = [cell("art", seed) for seed in range(WIDEST + 1)]
    assert widths(packets_of(many, PacketOptions(), GPU, 1)) == [WIDEST, 1]


def test_a_stack_that_was_begun_stays_together(cell):
    cells = [cell("art", seed) for seed in range(4)]
    folder = cells[0].out.parent / ".stacks" / "some"
    folder.mkdir(parents=True)
    members = [cells[number].experiment.identity() for number in (3, 1)]
    (folder / "members.json").write_text(json.dumps([*members, "of another sweep"]))
    packets = packets_of(cells, PacketOptions(), CPU, 2)
    assert [packet.cells for packet in packets] == [(cells[0],), (cells[2],), (cells[3], cells[1])]


@pytest.mark.parametrize("count", [0, 1])
def test_few_cells_are_few_packets(cell, count):
    assert widths(packets_of([cell("art")][:count], PacketOptions(), GPU, 4)) == [1] * count

"""Digits in a terminal: half blocks, words that fit, and nothing where there is no terminal."""

from __future__ import annotations

import numpy as np

from metavib.interfaces.cli.training.demo_picture import GAP, SIDE, picture_lines, show_picture


def test_a_character_is_two_pixels_one_above_the_other():
    image = np.zeros((SIDE, SIDE), dtype=np.uint8)
    image[0, 0] = image[3, 1] = 255
    image[4:6, 2] = 255
    lines = picture_lines([image], ["7, 90 %"])
    assert lines[:3] == ["▀", " ▄", "  █"]
    assert lines[SIDE // 2 :] == ["7, 90 %"]


def test_images_of_another_size_are_shrunk_and_stand_side_by_side():
    full, empty = np.full((28, 28), 255, dtype=np.uint8), np.zeros((28, 28), dtype=np.uint8)
    lines = picture_lines([empty, full], ["a", "not sure: perhaps b"])
    assert lines[0] == " " * (SIDE + GAP) + "█" * SIDE
    assert len(lines) == SIDE // 2 + 2
    assert [line[SIDE + GAP :] for line in lines[-2:]] == ["not sure:", "perhaps b"]
    assert all(len(line) <= 2 * SIDE + GAP for line in lines)


def test_nothing_is_drawn_for_nobody():
    assert picture_lines([], []) == []


def test_without_a_terminal_there_is_no_picture(tmp_path, capsys):
    show_picture(tmp_path, tmp_path)  # which holds no model: it is not even looked for
    assert capsys.readouterr().out == ""

"""What datasets that are known by name share."""

from __future__ import annotations

import pytest

from metavib.core.errors import UserError
from metavib.data.sources.catalog import DATASETS
from metavib.data.sources.published import MissingDataError, home_of, require_files, rows_of


@pytest.mark.parametrize("name", [name for name in DATASETS if not name.startswith("rotated")])
def test_a_dataset_that_is_not_there_says_how_to_fetch_it(tmp_path, name):
    with pytest.raises(MissingDataError, match=rf"is not in .*expected .*`metavib fetch {name}`") as caught:
        DATASETS[name](tmp_path, protocol=None, seed=0)
    assert caught.value.name == name


def test_the_first_place_that_has_everything_is_home(tmp_path):
    for place in ("other/a", "other/b", "name/inside/a"):
        (tmp_path / place).mkdir(parents=True)
    assert home_of(tmp_path, ("name", "other"), ("", "inside"), ("a", "b")) == tmp_path / "other"
    assert home_of(tmp_path, ("name",), ("", "inside"), ("a",)) == tmp_path / "name" / "inside"
    assert home_of(tmp_path, ("name",), ("",), ("a",)) is None


def test_files_that_lists_name_must_be_there(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    require_files(tmp_path, ["a/1.png"], "It")
    with pytest.raises(UserError, match=r"lacks 7 images: a/0.png, .* and 2 more; unpack it again"):
        require_files(tmp_path, [f"a/{n}.png" for n in range(8)], "It")
    with pytest.raises(UserError, match=r"lacks 1 images: b/1.png"):
        require_files(tmp_path, ["a/1.png", "b/1.png"], "It")


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"a\n1\n", "no column b"), (b"a,b\n1\n", "line 2: it was cut off"), (b"\xff", "read")],
)
def test_a_table_that_is_damaged_is_refused(tmp_path, content, why):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UserError, match=why):
        list(rows_of(tmp_path / "t.csv", ("a", "b")))

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.file_dataset import File, FileDataset
from metavib.data.splits import natural_order, separate, split_domains

Images = Mapping[str, Sequence[tuple[str, str]]]  # (class, part) of each image, by domain


def dataset_of(images: Images) -> Dataset:
    """A dataset whose files do not exist: splitting must open none."""
    files = {
        domain: [File(f"{domain}/{place:03}.png", label, part) for place, (label, part) in enumerate(members)]
        for domain, members in images.items()
    }
    return FileDataset("drawn", Path("/nowhere"), files, protocol="folder")


def plain(count: int, labels: str = "ab") -> list[tuple[str, str]]:
    return [(label, "") for label in labels for _ in range(count)]


labels = st.sampled_from("abc")
without_parts = st.lists(labels.map(lambda label: (label, "")), min_size=1, max_size=40)
with_parts = st.lists(st.tuples(labels, st.sampled_from(["train", "crossval", "test"])), max_size=40).map(
    # every class is trained with, so that the drawn dataset is a valid one
    lambda members: [("a", "train"), ("b", "train"), ("c", "train"), *members]
)
drawn_images = st.fixed_dictionaries(
    {
        "all": st.just([("a", ""), ("b", ""), ("c", "")]),
        "one": st.one_of(without_parts, with_parts),
        "two": st.one_of(without_parts, with_parts),
        "target": st.one_of(without_parts, with_parts),
    }
)


@settings(max_examples=150, deadline=None)
@given(images=drawn_images, seed=st.integers(0, 2**40), share=st.floats(0, 0.99))
def test_roles_are_disjoint_complete_and_repeatable(images: Images, seed: int, share: float) -> None:
    dataset = dataset_of(images)
    split = split_domains(dataset, "target", seed=seed, validation_share=share)
    assert split == split_domains(dataset, "target", seed=seed, validation_share=share)
    assert set(split.train) == set(split.validation) == {"all", "one", "two"}  # never the target
    assert split.classes == ("a", "b", "c")
    for domain, trained in split.train.items():
        listing, validated = dataset.listing(domain), split.validation[domain]
        assert not set(trained) & set(validated)
        assert len(set(trained)) == len(trained)
        own_parts = {listing.parts[position] for position in trained}
        assert own_parts in ({""}, {"train"})
        left = set(range(len(listing.names))) - set(trained) - set(validated)
        if own_parts == {""}:
            assert not left
        else:
            assert {listing.parts[position] for position in left} <= {
                "test",
                *(["crossval"] if share == 0 else []),
            }
        candidates = {p for p, part in enumerate(listing.parts) if part in own_parts}
        assert {listing.classes[p] for p in trained} == {listing.classes[p] for p in candidates}
        if share == 0:
            assert validated == ()
    target = dataset.listing("target")
    expected = [place for place, part in enumerate(target.parts) if part == "test"]
    assert list(split.tested) == (expected or list(range(len(target.names))))


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        (1, 0.5, 0),
        (2, 0.1, 1),
        (2, 0.9, 1),
        (10, 0.1, 1),
        (100, 0.1, 10),
        (100, 0.25, 25),
        (3, 0.99, 2),
        (50, 0.0, 0),
    ],
)
def test_the_share_of_each_class(count: int, share: float, expected: int) -> None:
    dataset = dataset_of({"x": plain(count), "y": plain(count), "t": plain(1)})
    split = split_domains(dataset, "t", seed=1, validation_share=share)
    for domain in ("x", "y"):
        held_out = [dataset.listing(domain).classes[position] for position in split.validation[domain]]
        assert held_out == ["a"] * expected + ["b"] * expected
        assert len(split.train[domain]) == 2 * (count - expected)


def test_the_draw_depends_on_seed_and_domain() -> None:
    dataset = dataset_of({"x": plain(50), "y": plain(50), "t": plain(1)})
    split = split_domains(dataset, "t", seed=1, validation_share=0.2)
    assert split.validation["x"] != split.validation["y"]
    assert split.validation["x"] != split_domains(dataset, "t", seed=2, validation_share=0.2).validation["x"]


def test_a_domain_with_train_but_no_crossval_part_gives_a_share_of_train() -> None:
    members = [("a", "train")] * 10 + [("a", "test")] * 5
    split = split_domains(
        dataset_of({"x": members, "y": members, "t": members}), "t", seed=0, validation_share=0.2
    )
    assert len(split.train["x"]) == 8
    assert set(split.train["x"]) | set(split.validation["x"]) == set(range(10))
    assert split.tested == (10, 11, 12, 13, 14)


@pytest.mark.parametrize(
    ("images", "target", "message"),
    [
        ({"x": plain(2)}, "x", r"drawn has 1 domain\(s\): x; at least 2 source domains and a target"),
        ({"x": plain(2), "y": plain(2)}, "x", r"drawn has 2 domain\(s\): x, y"),
        (
            {"ex": plain(2), "y": plain(2), "z": plain(2)},
            "es",
            "unknown target domain 'es'; did you mean 'ex'",
        ),
        (
            {"x": plain(2), "y": plain(2), "t": plain(2, "abz")},
            "t",
            "no source domain has training images of z, which target 't'",
        ),
        (
            {"x": [("a", "train"), ("q", "crossval")], "y": plain(2), "t": plain(2)},
            "t",
            "no source domain has training images of q",
        ),
        ({"x": [("a", "test")], "y": plain(2), "t": plain(2)}, "t", "domain 'x' has no training part"),
    ],
)
def test_what_cannot_be_split_is_explained(images: Images, target: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_domains(dataset_of(images), target, seed=0, validation_share=0.1)


def test_a_domain_that_is_left_out_plays_no_part_and_changes_no_other() -> None:
    dataset = dataset_of({"x": plain(9), "y": plain(9), "z": plain(9, "abq"), "t": plain(3)})
    whole = split_domains(dataset, "t", seed=0, validation_share=0.3)
    split = split_domains(dataset, "t", seed=0, validation_share=0.3, without=("z",))
    assert list(split.train) == list(split.validation) == ["x", "y"]
    assert split.classes == ("a", "b")  # only the domain that is left out has q
    for domain in ("x", "y"):
        assert split.train[domain] == whole.train[domain]
        assert split.validation[domain] == whole.validation[domain]
    assert split.tested == whole.tested
    assert split.digest(dataset) != whole.digest(dataset)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (("q9",), "unknown domain to leave out 'q9'. Known: t, x, y, z"),
        (("z", "xx"), "unknown domain to leave out 'xx'; did you mean 'x'"),
        (("t",), "'t' cannot be the target and left out altogether"),
        (("x", "y"), r"drawn has 2 domain\(s\) left: z, t; at least 2 source domains and a target"),
    ],
    ids=str,
)
def test_what_cannot_be_left_out_is_explained(without: tuple[str, ...], message: str) -> None:
    dataset = dataset_of({name: plain(2) for name in "xyzt"})
    with pytest.raises(UserError, match=message):
        split_domains(dataset, "t", seed=0, validation_share=0.1, without=without)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_the_share_must_be_one(share: float) -> None:
    dataset = dataset_of({"x": plain(2), "y": plain(2), "t": plain(2)})
    with pytest.raises(UserError, match=r"from 0 to below 1"):
        split_domains(dataset, "t", seed=0, validation_share=share)


def test_a_class_that_only_an_untested_part_of_the_target_has_does_not_matter() -> None:
    target = [("a", "test"), ("z", "train")]
    split = split_domains(
        dataset_of({"x": plain(2), "y": plain(2), "t": target}), "t", seed=0, validation_share=0.0
    )
    assert split.classes == ("a", "b")


def test_the_digest_is_of_names_and_roles_not_of_order() -> None:
    images = {"x": plain(9), "y": plain(9), "t": plain(3)}
    backwards = dict(reversed(images.items()))
    digests = {
        split_domains(dataset_of(members), "t", seed=0, validation_share=0.3).digest(dataset_of(members))
        for members in (images, backwards)
    }
    assert len(digests) == 1
    assert len(digests.copy().pop()) == 16
    for target, seed in (("x", 0), ("t", 1)):
        other = split_domains(dataset_of(images), target, seed=seed, validation_share=0.3)
        assert other.digest(dataset_of(images)) not in digests


@given(kept=st.lists(st.sampled_from("abcdef")), candidates=st.lists(st.sampled_from("abcdef")))
def test_separate_leaves_no_candidate_that_is_among_the_kept(kept: list[str], candidates: list[str]) -> None:
    remaining = separate(iter(kept), candidates)
    assert not {candidates[position] for position in remaining} & set(kept)
    assert {candidates[p] for p in range(len(candidates)) if p not in remaining} <= set(kept)
    assert list(remaining) == sorted(remaining)


def test_natural_order() -> None:
    names = ["10", "2", "b", "a10", "a9", "a", "010", "1" * 5000]
    assert sorted(names, key=natural_order) == ["2", "010", "10", "1" * 5000, "a", "a9", "a10", "b"]


@given(names=st.sets(st.text(alphabet="a01²9", max_size=5)))
def test_natural_order_never_depends_on_the_order_before(names: set[str]) -> None:
    forwards = sorted(sorted(names), key=natural_order)
    assert forwards == sorted(sorted(names, reverse=True), key=natural_order)

"""DomainNet with and without its official lists."""

from __future__ import annotations

import published_miniatures as made
import pytest

from metavib.core.errors import UserError
from metavib.data.sources.domain_net import open_domain_net
from metavib.data.splits import split_domains


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """The images, and the lists by name."""
    folder = tmp_path_factory.mktemp("domain-net")
    archives, lists = made.domain_net()
    for files in archives.values():
        made.write(files, folder / "domain-net")
    return folder, {name: text.encode() for name, text in lists.items()}


@pytest.fixture
def root(made_once):
    """The dataset, whose lists may be changed."""
    folder, lists = made_once
    made.write(lists, folder / "domain-net" / "splits")
    return folder


def test_lists_say_what_trains_and_what_is_tested(root):
    dataset = open_domain_net(root)
    split = split_domains(dataset, "sketch", seed=0, validation_share=0)
    names = dataset.listing("sketch").names
    assert [names[position] for position in split.tested][:1] == ["sketch/thing_000/sketch_1.png"]
    assert (len(split.tested), len(split.train["real"]), len(split.classes)) == (345, 345, 345)
    assert len(names) == 690  # the third image of each class is in no list


def test_without_lists_all_images_count(root):
    for path in (root / "domain-net" / "splits").iterdir():
        path.unlink()
    dataset = open_domain_net(root)
    assert dataset.protocol == "stratified split"
    assert len(dataset.listing("quickdraw").names) == 3 * 345


def test_damaged_lists_are_refused(root):
    path = root / "domain-net" / "splits" / "real_train.txt"
    for content, why in [
        ("", "lists no image"),
        ("real/../../x.png 1", "line 1: expected real/<class>/<image>"),
        ("sketch/a/1.png 1", "line 1: expected real/"),
        ("real/thing_000/gone.png 0", "lacks 1 images: real/thing_000/gone.png"),
    ]:
        path.write_text(content)
        with pytest.raises(UserError, match=why):
            open_domain_net(root)
    path.unlink()
    with pytest.raises(UserError, match="all twelve lists"):
        open_domain_net(root)

"""Bytes of a body: whatever their number, and however they come, all of them are there."""

import weakref

import pytest

from metavib.serving.http.holding import BLOCK, Held, _filled


@pytest.mark.parametrize("step", [1000, 65_536, BLOCK, BLOCK + 1, 5 * BLOCK])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
def test_what_comes_is_held(size, step):
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    held = Held()
    for at in range(0, size, step):
        held.add(content[at : at + step])
    assert len(held) == size
    for look in (False, True):
        if look:
            held.add(content)
            assert held.content() == content
        whole = held.handed_over()
        assert whole[:] == content
        assert (len(held), held.content()) == (0, b"")


def test_a_few_bytes_are_not_copied():
    content = b"a small image" * 10
    held = Held()
    held.add(content)
    held.add(b"")
    assert held.content() is content


def test_many_bytes_go_back_to_the_system_when_they_are_dropped():
    from metavib.core import memory

    if not memory.taken():
        pytest.skip("nothing says what is taken")
    before = memory.taken()
    held = [Held() for _ in range(10)]
    for _ in range(80):  # all of them grow at a time
        for one in held:
            one.add(b"x" * 100_000)
    grown = memory.taken() - before
    assert grown < 1.2 * 80_000_000
    whole = [one.handed_over() for one in held]
    assert memory.taken() - before < 1.2 * 80_000_000  # not both
    whole.clear()
    held.clear()
    del one
    assert memory.taken() - before < 20_000_000


@pytest.mark.parametrize("size", [0, 5, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_what_is_closed_holds_nothing_and_still_says_how_much_came(size):
    held = Held()
    held.add(b"x" * size)
    blocks = [weakref.ref(block) for block in held._blocks]
    held.close()
    assert not any(block() for block in blocks)
    assert (held.content(), held.handed_over(), len(held)) == (b"", b"", size)
    held.close()


@pytest.mark.parametrize("size", [BLOCK, 3 * BLOCK + 7])
def test_the_whole_is_a_copy_that_is_not_kept(size):
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    held = Held()
    for at in range(0, size, 1000):
        held.add(content[at : at + 1000])
    assert held.content() == held.content() == content
    assert not held._pieces
    assert len(held._blocks) == -(-size // BLOCK)
    held.add(b"more")
    assert held.content() == content + b"more"
    held.close()
    assert held.content() == b""


def test_who_reads_while_it_is_closed_has_all_of_it():
    content = bytes(range(256)) * (BLOCK // 100)
    held = Held()
    held.add(content)
    views = _filled(held._blocks, len(held))
    held.close()
    assert b"".join(views) == content

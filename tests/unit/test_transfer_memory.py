"""What is written in a transfer test, and how it is looked at: in numpy's memory and in torch's, by the same code."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from serving.transfer_test import copies, memory, pattern
from serving.transfer_test.memory import Memory, NoBuffer, Slot

SIZE = 1 << 16
MAKERS: tuple[Callable[[int], Memory], ...] = (
    lambda size: memory.allocate("cpu", size),
    lambda size: memory.on_tensor(torch.full((size // 8,), pattern.POISON, dtype=torch.int64)),
)
made = pytest.mark.parametrize("make", MAKERS, ids=["numpy", "torch"])


@given(
    source=st.integers(0, pattern.RANKS - 1),
    destination=st.integers(0, pattern.RANKS - 1),
    size=st.integers(8, 1 << 30),
    sequence=st.integers(0, 1 << 20),
    index=st.integers(0, (1 << 32) - 1),
)
def test_a_word_says_where_it_comes_from(source: int, destination: int, size: int, sequence: int, index: int) -> None:
    word = pattern.word(pattern.tag(source, destination, size, sequence), index)
    assert 0 < word < 1 << 63 or (word == 0 and sequence % pattern.WRITES == 0)
    said = pattern.origin(word)
    assert f"word {index} of write {sequence % pattern.WRITES}, from source rank {source} to" in said
    assert said.endswith(f"destination rank {destination}")


def test_what_nobody_wrote_is_named() -> None:
    assert pattern.origin(pattern.POISON) == "nothing was written there"
    assert pattern.origin(0) == "zeros"
    assert pattern.origin(-1) == "all ones"
    assert pattern.origin(17).endswith("which nobody wrote")


@made
def test_a_slot_that_was_written_is_right_and_the_rest_untouched(make: Callable[[int], Memory]) -> None:
    there = make(SIZE)
    slot = Slot(4096, 8192, pattern.tag(1, 2, 8192, 7))
    assert there.sweep() is None
    difference = there.check(slot)
    assert difference is not None
    assert str(difference) == "1024 words are wrong, the first at byte 4096: nothing was written there"
    there.fill(slot)
    assert there.check(slot) is None
    there.poison(slot.offset, slot.size)
    assert there.sweep() is None


@made
@given(at=st.integers(0, SIZE // 8 - 1), word=st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_wrong_word_anywhere_is_found(make: Callable[[int], Memory], at: int, word: int) -> None:
    there = make(SIZE)
    slot = Slot(0, SIZE, pattern.tag(0, 0, SIZE, 1))
    there.fill(slot)
    right = int(there._words[at])
    there._words[at] = word
    difference = there.check(slot)
    if word == right:
        assert difference is None
    else:
        assert difference is not None
        assert (difference.offset, difference.words, difference.found) == (at * 8, 1, word)


@made
def test_the_write_of_another_is_named(make: Callable[[int], Memory]) -> None:
    there = make(SIZE)
    there.fill(Slot(SIZE - 64, 64, pattern.tag(3, 1, 64, 12)))
    difference = there.sweep()
    assert difference is not None
    said = "8 words are wrong, the first at byte 65472: word 0 of write 12, from source rank 3 to destination rank 1"
    assert str(difference) == f"outside of what was written {said}"


def test_a_copy_is_looked_at_in_both_directions() -> None:
    one, other = (torch.empty(SIZE // 8, dtype=torch.int64) for _ in range(2))
    assert copies.copy_checked(one, other, (0, 1), 0)[0] is None
    assert copies.copy_checked(other, one, (1, 0), 1)[0] is None


def test_a_copy_that_does_not_land_is_found() -> None:
    class Lost(torch.Tensor):  # type: ignore[misc]
        def copy_(self, *_: object) -> "Lost":
            return self

    one = torch.empty(SIZE // 8, dtype=torch.int64)
    other = torch.empty(SIZE // 8, dtype=torch.int64).as_subclass(Lost)
    what, _ = copies.copy_checked(one, other, (0, 1), 0)
    assert what is not None
    assert "nothing was written there" in what


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  1048576 kB\n")
    assert memory.free_host_bytes(tmp_path) == 1 << 30
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    for name, text in (("memory.max", "1000"), ("memory.current", "800"), ("memory.stat", "anon 1\ninactive_file 300")):
        (group / name).write_text(text)
    assert memory.free_host_bytes(tmp_path) == 500
    (group / "memory.max").write_text("max\n")
    assert memory.free_host_bytes(tmp_path) == 1 << 30
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 1 << 30)
    with pytest.raises(NoBuffer, match="this host has 1024 MiB free, and the test needs 1536"):
        memory.allocate("cpu", 256 << 20, together=4)

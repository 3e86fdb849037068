"""Stop strings end a text at the same place whatever pieces it arrives in, and never leak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.text import StopFilter


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    stop_filter = StopFilter(stops)
    out = []
    for piece in pieces:
        text, stopped = stop_filter.push(piece)
        out.append(text)
        if stopped:
            return out, True
    return [*out, stop_filter.flush()], False


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "stopped"),
    [
        ([], ["a", "b"], ["a", "b", ""], False),
        (["\n\n"], ["one\n", "two", "\n\nthree"], ["one", "\ntwo", ""], True),
        (["END"], ["E", "N", "D"], ["", "", ""], True),
        (["END"], ["E", "N", "X"], ["", "", "ENX", ""], False),
        (["END"], ["an E"], ["an ", "E"], False),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], True),  # held back text shrinks, not restarts
        (["abab"], ["aba", "c"], ["", "abac", ""], False),
        (["abc", "b"], ["ab", "c"], ["a"], True),  # "b" is complete before "abc" is
        (["abc", "bc"], ["abc"], [""], True),  # both end here: the longer one
        (["", "x"], ["axb"], ["a"], True),
        (["停"], ["開始", "停", "止"], ["開始", ""], True),
    ],
)
def test_what_comes_out_and_when(stops: list[str], pieces: list[str], out: list[str], stopped: bool) -> None:
    assert run(stops, pieces) == (out, stopped)


def naive(stops: list[str], text: str) -> tuple[str, bool]:
    """Read character by character until the text so far ends with a stop string."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


letters = st.text("ab", max_size=12)


@given(st.lists(st.text("ab", max_size=4), max_size=3), st.lists(letters, max_size=6))
def test_pieces_do_not_matter(stops: list[str], pieces: list[str]) -> None:
    out, stopped = run(stops, pieces)
    assert ("".join(out), stopped) == naive(stops, "".join(pieces))


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), letters)
def test_no_more_is_held_back_than_could_begin_a_stop_string(stops: list[str], text: str) -> None:
    out, stopped = StopFilter(stops).push(text)
    held = "" if stopped else text[len(out) :]
    assert not held or any(stop.startswith(held) for stop in stops)

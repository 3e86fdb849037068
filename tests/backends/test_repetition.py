"""The guard against answers that only repeat themselves: what it ends, and what it must leave alone.

Where texts are tried, each character is a token, which is the worst case for honest ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from backends.repetition import RepetitionGuard


def ended_after(tokens: Iterable[object]) -> int | None:
    """Return after how many tokens the guard ends an answer, None if it lets all through."""
    guard = RepetitionGuard()
    for count, token in enumerate(tokens, 1):
        if guard.push(token):
            return count
    return None


SENTENCE = "The quick brown fox jumps over the lazy dog and runs away from the hounds of the old mill ."
WORDS = SENTENCE.split()


@pytest.mark.parametrize(
    ("cycle", "most"),
    [
        (["!"], 310),
        (["ha", " "], 330),
        (["<0xE4>", "<0xBD>", "<0xA0>"], 340),
        (WORDS, 620),
        ([str(number) for number in range(32)], 810),
    ],
)
def test_cycles_end(cycle: list[str], most: int) -> None:
    ended = ended_after(itertools.islice(itertools.cycle(cycle), 4096))
    assert ended is not None
    assert 256 <= ended <= most


def test_a_cycle_that_begins_late_ends_too() -> None:
    ended = ended_after(itertools.chain(range(3000), itertools.islice(itertools.cycle("ab"), 1000)))
    assert ended is not None
    assert 3256 <= ended <= 3330


TABLE = "| Name | Age | City | Country | Email | Phone |\n|------|-----|------|---------|-------|-------|\n"
ROWS = "".join(f"| {name} | {age} | - | - | - | - |\n" for age, name in enumerate(WORDS * 5))
SAME_ROWS = "| yes | no | yes |\n" * 14
REFRAIN = "Row, row, row your boat,\nGently down the stream,\nMerrily, merrily, merrily, merrily,\n" * 8
POEM = "".join(f"Verse {number} of {number * 7} lines\nO captain! my captain!\n" for number in range(40))
CODE = "".join(
    f"    if (value == {number}) {{\n        return names[{number}];\n    }}\n" for number in range(60)
)
MATRIX = "[\n" + "    [0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 9 + "]\n"
WIDE_MATRIX = "[" + "0, " * 16 + "],\n"


@pytest.mark.parametrize(
    "text",
    [
        "-" * 40,
        "=" * 120,
        "| " + "-" * 200 + " |\n",
        TABLE + ROWS,
        SAME_ROWS,
        REFRAIN,
        POEM,
        CODE,
        MATRIX,
        WIDE_MATRIX * 16,
        "\n" * 40 + " " * 160,
        "no " * 60,
        "10101010" * 32,
        "哈" * 100,
    ],
)
def test_honest_repetition_passes(text: str) -> None:
    assert ended_after(text) is None


def test_a_break_in_the_cycle_begins_the_count_anew() -> None:
    assert ended_after(("a" * 250 + "b") * 10) is None

"""Deltas cut into reasoning and answer: no token and no logprob is lost or told twice."""

from __future__ import annotations

from backends.base import TokenLogprob
from backends.protocol import Delta
from server.generation.events import Output, Reasoning
from server.generation.generation import split_delta
from server.generation.thinking import ThinkingSplitter


def outputs(*deltas: Delta) -> list[Output]:
    splitter = ThinkingSplitter("<think>", "</think>")
    return [output for delta in deltas for output in split_delta(splitter, delta)]


def test_one_delta_of_both_kinds() -> None:
    logprobs = [TokenLogprob("x", b"x", -1.0, [])]
    assert outputs(Delta(1, "<think>a</think>a", 5, logprobs)) == [
        Reasoning("a", 0),
        Delta(1, "a", 5, logprobs),
    ]


def test_marks_and_white_space_count_as_reasoning() -> None:
    deltas = (Delta(1, "<think>", 1), Delta(1, "a", 1), Delta(1, "</think>", 1), Delta(1, "b", 1))
    assert outputs(*deltas) == [Reasoning("", 1), Reasoning("a", 1), Reasoning("", 1), Delta(1, "b", 1)]


def test_text_that_is_held_back_keeps_its_count() -> None:
    assert outputs(Delta(1, "<th", 1), Delta(1, "x", 1)) == [Delta(1, "", 1), Delta(1, "<thx", 1)]

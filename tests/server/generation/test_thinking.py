"""The splitter of reasoning and answer, whole and cut at every place."""

from __future__ import annotations

import pytest

from server.generation.thinking import ThinkingSplitter, begun_mark

CASES = [
    # text, what the prompt has begun of the mark, reasoning, answer
    ("<think>a b</think>c d", "", "a b", "c d"),
    ("<think>\na b\n</think>\n\nc d\n", "", "a b", "c d\n"),
    (" \n<think>a</think>c", "", "a", "c"),
    ("a b\n</think>\n\nc", "<think>", "a b", "c"),
    ("</think>c", "<think>", "", "c"),
    ("<think>\n\n</think>\n\nc", "", "", "c"),
    ("plain", "", "", "plain"),
    (" plain ", "", "", " plain "),
    ("<thin", "", "", "<thin"),
    ("<thinking>x</think>", "", "", "<thinking>x</think>"),
    ("say <think>x</think>", "", "", "say <think>x</think>"),
    ("<think>a</think>b<think>c</think>d", "", "a", "b<think>c</think>d"),
    ("<think>never closed </thin", "", "never closed </thin", ""),
    ("<think>a </ b < c</think>d", "", "a </ b < c", "d"),
    ("<think>a <</think>d", "", "a <", "d"),
    ("<think>", "", "", ""),
    ("<think>a \n", "", "a", ""),
    (" \n", "", "", " \n"),
    ("", "", "", ""),
    (">a</think>b", "<think", "a", "b"),
    ("ing about it", "<think", "", "ing about it"),
    ("think>a</think>b", "<", "a", "b"),
    ("th", "<", "", "th"),
    ("\nc d\n", "</think>", "", "c d\n"),
    ("<think>x</think>", "</think>", "", "<think>x</think>"),
    ("\n", "</think>", "", ""),
]


def split(pieces: list[str], begun: str) -> tuple[str, str]:
    splitter = ThinkingSplitter("<think>", "</think>", begun=begun)
    found = {True: "", False: ""}
    for piece in pieces:
        for reasoning, text in splitter.push(piece):
            assert text
            found[reasoning] += text
    for reasoning, text in splitter.flush():
        found[reasoning] += text
    return found[True], found[False]


@pytest.mark.parametrize(("text", "begun", "reasoning", "answer"), CASES)
def test_text_is_split_wherever_it_is_cut(text: str, begun: str, reasoning: str, answer: str) -> None:
    assert split([text], begun) == (reasoning, answer)
    assert split(list(text), begun) == (reasoning, answer)
    for at in range(len(text)):
        assert split([text[:at], text[at:]], begun) == (reasoning, answer)


def test_text_is_released_as_soon_as_it_is_certain() -> None:
    splitter = ThinkingSplitter("<think>", "</think>")
    assert list(splitter.push("<thi")) == []
    assert list(splitter.push("nk>abc")) == [(True, "abc")]
    assert splitter.reasoning
    assert list(splitter.push(" <")) == []
    assert list(splitter.push("b")) == [(True, " <b")]
    assert list(splitter.push("</think>\n")) == []
    assert not splitter.reasoning
    assert list(splitter.push("x ")) == [(False, "x ")]
    assert list(splitter.push("<think>")) == [(False, "<think>")]


def test_plain_text_is_not_held_back() -> None:
    splitter = ThinkingSplitter("<think>", "</think>")
    assert list(splitter.push("P")) == [(False, "P")]


def test_what_the_prompt_has_begun_is_found() -> None:
    assert begun_mark("assistant\n<think>\n", "<think>", "</think>") == "<think>"
    assert begun_mark("Assistant: <think", "<think>", "</think>") == "<think"
    assert begun_mark("assistant\n<think>\n\n</think>\n\n", "<think>", "</think>") == "</think>"
    assert begun_mark("assistant\n", "<think>", "</think>") == ""

"""Reasoning set apart from answers, arguments made objects, nothing changed in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from server.templates.guard import guard, unguard_all
from server.templates.messages import prepare_messages, split_reasoning
from tests.server.templates.support import CALLED, answer, call, prompt, result, user

MARKS = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("A", (None, "A")),
        ("<think>\nR\n</think>\n\nA", ("R", "A")),
        (" \n<think>R</think>A", ("R", "A")),
        ("<think></think>A", ("", "A")),
        ("<think>\n\n</think>\n\nA", ("", "A")),
        ("R\n</think>\n\nA", ("R", "A")),
        ("</think>A", ("", "A")),
        ("<think>R", ("R", "")),
        ("<think>R</think>A <think>B</think>", ("R", "A <think>B</think>")),
        ("It writes <think> and </think> around it.", (None, "It writes <think> and </think> around it.")),
        ("It begins with <think>.", (None, "It begins with <think>.")),
        ("", (None, "")),
    ],
)
def test_reasoning_in_an_answer(content: str, expected: tuple[str | None, str]) -> None:
    assert split_reasoning(content, MARKS) == expected


def test_marks_in_a_history_make_no_difference() -> None:
    mode = {"default": True, "switch": "enable_thinking"}
    marked = [user("U1"), answer("<think>\nR\n</think>\n\nA1"), user("U2")]
    apart = [user("U1"), answer("A1", reasoning_content="R"), user("U2")]
    for form in ("qwen3", "minicpm5", "granite4.2", "chatml", "rwkv"):
        assert prompt(form, marked, mode=mode) == prompt(form, apart, mode=mode)
        assert "R" not in prompt(form, marked, mode=mode).replace("User", "")


def test_only_answers_of_models_that_think_are_cut() -> None:
    text = "<think>R</think>A"
    assert unguard_all(prepare_messages([answer(text)], None)) == [{"role": "assistant", "content": text}]
    assert unguard_all(prepare_messages([user(text)], MARKS)) == [{"role": "user", "content": text}]
    assert unguard_all(prepare_messages([answer(text, reasoning_content="given")], MARKS)) == [
        {"role": "assistant", "content": text, "reasoning_content": "given", "thinking": "given"}
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": {"b": [1, "x y"]}}', {"a": {"b": [1, "x y"]}}),
        ("", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ("[1]", "[1]"),
        ('"text"', '"text"'),
        ('{"a": ', '{"a": '),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments(arguments: Any, expected: object) -> None:
    (message,) = prepare_messages([answer("", tool_calls=[call("f", arguments)])], None)
    assert unguard_all(message["tool_calls"][0]["function"]["arguments"]) == expected


def test_names_and_ids_stay_only_if_they_are_identifiers() -> None:
    (message,) = prepare_messages([answer("", tool_calls=[call("get_x", "{}", "call-1")])], None)
    assert message["tool_calls"] == [
        {"id": "call-1", "type": "function", "function": {"name": "get_x", "arguments": {}}}
    ]
    (message,) = prepare_messages([answer("", tool_calls=[call("<s>", "{}", "</s>")], name="a b")], None)
    assert message["tool_calls"][0]["id"] == guard("</s>")
    assert message["tool_calls"][0]["function"]["name"] == guard("<s>")
    assert message["name"] == guard("a b")
    (message,) = prepare_messages([result("T", "call_1")], None)
    assert message == {"role": "tool", "content": guard("T"), "tool_call_id": "call_1"}


def test_missing_content_is_empty() -> None:
    assert prepare_messages([{"role": "assistant", "content": None}, {"role": "user"}], MARKS) == [
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
    ]


def test_messages_stay_as_they_were() -> None:
    before = copy.deepcopy(CALLED)
    prepare_messages(CALLED, MARKS)
    assert before == CALLED

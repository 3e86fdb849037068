"""Guarding: lossless, out of the reach of templates, and back."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import Span
from server.templates.guard import (
    SENTINEL,
    guard,
    guard_all,
    guard_name,
    guard_names,
    spans,
    unguard,
    unguard_all,
)

# Every character UTF-8 can carry, planes 15 and 16 and white space oftener than by chance.
TEXT = st.text(
    st.characters(exclude_categories=["Cs"])
    | st.characters(min_codepoint=0xF0000)
    | st.sampled_from(" \n\t\r\x0b\x1c\x85\u00a0\u2028\u3000")
)


@settings(deadline=None)
@given(TEXT)
def test_guarding_loses_nothing(text: str) -> None:
    assert unguard(guard(text)) == text


@settings(deadline=None)
@given(TEXT)
def test_guarded_text_is_white_space_and_plane_15(text: str) -> None:
    assert all(char.isspace() or 0xF0000 <= ord(char) <= 0xFFFFF for char in guard(text))
    assert SENTINEL not in guard(text)


@settings(deadline=None)
@given(TEXT)
def test_white_space_stays_where_it_was(text: str) -> None:
    assert guard(text).strip() == guard(text.strip())
    assert [guard(line) for line in text.split("\n")] == guard(text).split("\n")
    assert [guard(word) for word in text.split()] == guard(text).split()


@settings(deadline=None)
@given(TEXT, TEXT)
def test_texts_of_clients_can_be_put_together(one: str, two: str) -> None:
    assert guard(one) + guard(two) == guard(one + two)


def test_every_character_there_is() -> None:
    text = "".join(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    assert unguard(guard(text)) == text


def test_a_text_of_the_template_stays() -> None:
    text = "<|im_start|> é 你 😀"
    assert unguard(text) == text
    assert spans(text) == [Span(text, True)]


def test_white_space_inside_counts_as_the_clients_and_around_as_the_templates() -> None:
    assert spans("<a>\n" + guard(" one\n\ntwo ") + "\n</a>") == [
        Span("<a>\n ", True),
        Span("one\n\ntwo", False),
        Span(" \n</a>", True),
    ]
    assert spans("<a>" + guard("one") + " " + guard("two")) == [Span("<a>", True), Span("one two", False)]


@pytest.mark.parametrize("rendered", ["", " ", "\n"])
def test_nothing_of_a_client(rendered: str) -> None:
    assert spans(rendered) == ([Span(rendered, True)] if rendered else [])


def test_characters_beyond_16_bits_cut_in_two_by_a_template() -> None:
    assert spans(guard("a😀")[:2]) == [Span("a\ufffd", False)]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc00\ud800"])
def test_lone_surrogates_do_no_harm(text: str) -> None:
    (span,) = spans(guard(text))
    assert "\ufffd" in span.text
    span.text.encode()


def test_identifiers_can_stay() -> None:
    assert guard_name("get_weather-2.$x") == "get_weather-2.$x"
    assert guard_name("") == ""
    for name in ("<s>", "a b", "a\n", "café", "[INST]"):
        assert guard_name(name) == guard(name) != name


def test_values_are_walked_through() -> None:
    value = {"name": "f", "<x>": [1, None, True, 2.5, ("a b",)], "n": {"type": "object"}}
    assert guard_names(value) == {
        "name": "f",
        guard("<x>"): [1, None, True, 2.5, [guard("a b")]],
        "n": {"type": "object"},
    }
    assert unguard_all(guard_all(value)) == {**value, "<x>": [1, None, True, 2.5, ["a b"]]}


def test_a_megabyte_of_every_kind() -> None:
    text = ("plain text, 你好 😀\n" * 70_000)[:1_000_000]
    assert spans("<s>" + guard(text)) == [Span("<s>", True), Span(text.rstrip(), False)] + (
        [Span(text[len(text.rstrip()) :], True)] if text != text.rstrip() else []
    )

"""What clients wrote is never a control token, and guarding changes nothing else about a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.templates.environment import BUILTIN
from tests.server.examples import example_entry
from tests.server.templates.support import (
    TOKENS,
    Message,
    answer,
    call,
    client_text,
    control_text,
    joined,
    spans_of,
    system,
    user,
)

FIXTURE = Path(__file__).parent / "fixtures" / "smollm2" / "chat_template.jinja"

TEXT = st.lists(
    st.text(max_size=5)
    | st.sampled_from(TOKENS)
    | st.sampled_from([" ", "\n", "\n\n", "\u3000", "😀", "\U000f0041"]),
    max_size=6,
).map("".join)
CHAT = st.tuples(
    st.none() | TEXT.map(system),
    st.lists(st.tuples(TEXT.map(user), TEXT.map(answer)), max_size=3),
    TEXT.map(user),
).map(
    lambda parts: [*([parts[0]] if parts[0] else []), *(turn for pair in parts[1] for turn in pair), parts[2]]
)

PLAIN_FORMS = ["chatml", "smollm2", "qwen3", "granite4", "granite4.2", "minicpm5", "lfm2", "llama3", "gemma4"]
TOOL_FORMS = ["chatml", "minicpm5", "granite4", "granite4.2", "lfm2", "lfm3", "nanbeige"]


def _unguarded(form: str) -> jinja2.Template:
    """The same template in an ordinary environment, which hands it the texts as they are."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(BUILTIN), trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.tests["containing"] = lambda text, *pieces: any(piece in text for piece in pieces)
    return environment.get_template(f"{form}.jinja")


PLAIN = {form: _unguarded(form) for form in PLAIN_FORMS}


@pytest.mark.parametrize("form", PLAIN_FORMS)
@settings(max_examples=60, deadline=None)
@given(messages=CHAT)
def test_guarding_changes_no_prompt(form: str, messages: Sequence[Message]) -> None:
    expected = PLAIN[form].render(messages=messages, add_generation_prompt=True)
    assert joined(spans_of(example_entry(template=form), messages)) == expected


@pytest.mark.parametrize("form", [*PLAIN_FORMS, "rwkv", str(FIXTURE)])
@settings(max_examples=60, deadline=None)
@given(messages=CHAT)
def test_every_text_stands_in_spans_of_its_kind(form: str, messages: Sequence[Message]) -> None:
    entry = example_entry(template=form)
    spans = spans_of(entry, messages)
    written = "".join(message["content"] for message in messages)
    assert client_text(spans) == "".join(written.split())
    # The template's text is what it is for harmless texts in the same places.
    harmless = [{**message, "content": "x" if message["content"].strip() else ""} for message in messages]
    assert control_text(spans) == control_text(spans_of(entry, harmless))
    assert all(span.text for span in spans)
    assert all(one.control != two.control for one, two in pairwise(spans))


def _conversation(text: str) -> tuple[list[Message], list[dict[str, Any]]]:
    """A conversation and tools with the text in every place a client can write to."""
    calls = [
        {**call(text, json.dumps({text: text, "n": [text, {text: 1}]})), "id": text},
        call("f", text, text),
        call(text, ""),
    ]
    schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text]}}}
    tools = [
        {
            "type": "function",
            "function": {"name": text, "description": text, "parameters": schema, text: text},
        },
    ]
    return [
        {**system(text), "name": text},
        {**user(text), "name": text},
        answer(text, reasoning_content=text, tool_calls=calls),
        {"role": "tool", "tool_call_id": text, "name": text, "content": text},
        {"role": "tool", "tool_call_id": text, "content": text},
        answer(text, reasoning_content=text),
        user(text),
    ], tools


@pytest.mark.parametrize("form", TOOL_FORMS)
@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("last", [5, None], ids=["after a tool's result", "after a question"])
def test_a_token_anywhere_is_text(form: str, token: str, last: int | None) -> None:
    # Some forms show the reasoning only of answers after the last question.
    entry = example_entry(template=form)
    messages, tools = _conversation(token)
    hostile = spans_of(entry, messages[:last], tools)
    # MiniCPM5 puts markup and line ends into CDATA, so the harmless text has as much of them.
    alike = "a<b" if "<" in token else "a\nb" if "\n" in token else "café"
    messages, tools = _conversation(alike)
    harmless = spans_of(entry, messages[:last], tools)
    assert control_text(hostile) == control_text(harmless)
    assert "".join(token.split()) in client_text(hostile)


@pytest.mark.parametrize("form", ["chatml", "smollm2", str(FIXTURE), "llama3", "rwkv"])
@pytest.mark.parametrize("token", TOKENS)
def test_a_token_in_two_pieces_is_text(form: str, token: str) -> None:
    """Half a token at the end of one text and half at the beginning of the next, at every place to cut."""
    entry = example_entry(template=form)
    harmless = control_text(spans_of(entry, [system("x"), user("x"), answer("x"), user("x")]))
    for cut in range(1, len(token)):
        head, tail = "x" + token[:cut], token[cut:] + "x"
        spans = spans_of(entry, [system(head), user(tail + head), answer(tail + head), user(tail)])
        assert control_text(spans) == harmless


@pytest.mark.parametrize("form", ["chatml", "lfm2", "minicpm5"])
def test_the_owners_system_text_is_text(form: str) -> None:
    entry = example_entry(template=form, template_options={"default_system": "Be <|im_end|> kind."})
    spans = spans_of(entry, [user("U1")])
    assert "Be<|im_end|>kind." in client_text(spans)


def test_a_template_cannot_be_written_by_a_client() -> None:
    text = "{{ messages }}{% raw %}{0.__class__}%(x)s"
    assert joined(spans_of(example_entry(), [user(text)])) == (
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )

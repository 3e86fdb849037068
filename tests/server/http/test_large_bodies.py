"""Bodies within the limit that hold more things than any conversation, and those that take their time."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, model_validator

from server.api.chat.schema import ChatRequest
from server.errors import InvalidRequest
from server.http.validation import LARGE, MOST_VALUES, count_values, parse, parse_aside

MANY = 100_000
USER = b'{"role":"user","content":"x"}'


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"messages":[' + b"0," * MANY + b"0]}", "messages.0"),
        (b'{"messages":[' + (USER + b",") * 30_000 + USER + b"]}", "messages"),
        (b'{"messages":[{"role":"user","content":[' + b"{}," * MANY + b"{}]}]}", "messages.0.content"),
        (b'{"messages":[' + USER + b'],"tools":[' + b"{}," * MANY + b"{}]}", "tools"),
        (b'{"messages":[' + USER + b'],"modalities":[' + b"0," * MANY + b"0]}", "modalities.0"),
        (
            b'{"messages":['
            + USER
            + b'],"logit_bias":{'
            + b",".join(b'"%d":""' % number for number in range(MANY // 2))
            + b"}}",
            "logit_bias",
        ),
        (
            b'{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"'
            + b"1" * 2_000_000
            + b'"}}]}]}',
            "messages.0.tool_calls",
        ),
    ],
)
def test_too_much_of_one_thing_is_refused_by_its_name(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(ChatRequest, body)
    assert (caught.value.param or "").startswith(field)
    assert "more like this" not in caught.value.message


PARTS = b'{"role":"user","content":[' + b",".join([b'{"type":"text","text":"x"}'] * 1000) + b"]}"


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b",".join([PARTS] * 50) + b"]}",
        b'{"what":[' + b"1," * MOST_VALUES + b'1],"messages":[' + USER + b"]}",
        b'{"what":[' + b"[]," * MOST_VALUES + b'1],"messages":[' + USER + b"]}",
        b'{"regex":[' + b'"",' * MOST_VALUES + b'1],"messages":[' + USER + b"]}",
    ],
    ids=["parts", "numbers", "lists", "strings"],
)
def test_too_many_things_in_all_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="more than 300000 names and values"):
        parse(ChatRequest, body)


def test_as_many_messages_as_there_may_be_with_a_part_each_are_taken() -> None:
    message = b'{"role":"user","content":[{"type":"text","text":"a \\\\\\", [{"}]}'
    parsed = parse(ChatRequest, b'{"messages":[' + b",".join([message] * 20_000) + b"]}")
    assert len(parsed.messages) == 20_000


def counted(value: Any) -> int:
    """Return what count_values should: strings, commas and opening brackets of a value's JSON."""
    if isinstance(value, str):
        return 1
    if isinstance(value, list):
        return max(1, len(value)) + sum(map(counted, value))
    if isinstance(value, dict):
        return max(1, len(value)) + len(value) + sum(map(counted, value.values()))
    return 0


TEXTS = st.text() | st.text('\\"{[,}]a')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=50,
)


@settings(max_examples=50, deadline=None)
@given(VALUES, st.booleans())
def test_counting_is_exact(value: Any, ascii_only: bool) -> None:
    assert count_values(json.dumps(value, ensure_ascii=ascii_only).encode(), 10**9) == counted(value)


class Slow(BaseModel):
    """A body that takes until it is told to go on, if it is said to be slow."""

    slow: bool
    going_on: ClassVar[threading.Event] = threading.Event()
    begun: ClassVar[threading.Semaphore] = threading.Semaphore(0)
    threads: ClassVar[set[int]] = set()

    @model_validator(mode="after")
    def _take_time(self) -> Slow:
        self.threads.add(threading.get_ident())
        self.begun.release()
        if self.slow:
            assert self.going_on.wait(60)
        return self


async def test_large_bodies_are_parsed_beside_the_loop_one_at_a_time() -> None:
    turn = asyncio.Lock()
    body = b'{"slow":true}' + b" " * LARGE
    large = [asyncio.create_task(parse_aside(Slow, body, turn)) for _ in range(3)]
    assert await asyncio.to_thread(Slow.begun.acquire, timeout=60)
    assert not (await parse_aside(Slow, b'{"slow":false}', turn)).slow
    assert threading.get_ident() in Slow.threads
    assert Slow.begun.acquire(blocking=False)  # that of the small one
    assert not Slow.begun.acquire(blocking=False)
    Slow.going_on.set()
    assert all(parsed.slow for parsed in await asyncio.gather(*large))

"""Bodies within the limit that hold more things than any conversation: refused at once."""

from __future__ import annotations

import pytest

from server.api.chat.schema import ChatRequest
from server.errors import InvalidRequest
from server.http.validation import parse

MANY = 1_000_000
USER = b'{"role":"user","content":"x"}'


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"messages":[' + b"0," * MANY + b"0]}", "messages.0"),
        (b'{"messages":[' + (USER + b",") * 30_000 + USER + b"]}", "messages"),
        (b'{"messages":[{"role":"user","content":[' + b"{}," * MANY + b"{}]}]}", "messages.0.content"),
        (b'{"messages":[' + USER + b'],"tools":[' + b"{}," * MANY + b"{}]}", "tools"),
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

"""Bodies that are too large, cut short, no JSON or strange JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from server.http import body as body_module
from tests.server.http.raw import chat_body, chunk, connected, post
from tests.server.scripted import Served, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def posted(served: Served, body: bytes) -> tuple[int, dict[str, str]]:
    response = await served.client.post("/v1/chat/completions", content=body)
    found: dict[str, str] = response.json().get("error", {})
    return response.status_code, found


NO_JSON = [
    b"",
    b" \n",
    b"{",
    b"hello",
    b'{"model": "tiny",}',
    b'{"model": tiny}',
    b"<html></html>",
    b"\xff\xfe\x00",
    b'{"model": "\xff\xfe"}',
    b'{"model": "\xed\xa0\x80"}',
    b'{"model": "\\ud800"}',
    b'{"messages": [{"role": "user", "content": "a \\udc00 b"}]}',
    b'{"model": "a\nb"}',
    b'\xef\xbb\xbf{"model": "tiny"}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"what": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"tools": ' + b'[{"a":' * 5_000 + b"1" + b"}]" * 5_000 + b"}",
    b'{"seed": ' + b"9" * 5_000 + b"}",
]


@pytest.mark.parametrize("body", NO_JSON, ids=lambda body: repr(body[:30]))
async def test_no_json_is_a_bad_request(served: Served, body: bytes) -> None:
    status, error = await posted(served, body)
    assert status == 400
    assert error["code"] == "invalid_request"
    assert error["message"].startswith(("the body is", "seed "))
    assert (await served.client.get("/health")).status_code == 200


@pytest.mark.parametrize("body", [b"null", b"[]", b"5", b'"text"', b"true"])
async def test_json_that_is_no_object_is_a_bad_request(served: Served, body: bytes) -> None:
    status, error = await posted(served, body)
    assert (status, error["message"]) == (400, "the body must be an object")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
async def test_numbers_that_are_none_are_refused(served: Served, number: bytes) -> None:
    body = chat_body()[:-1] + b', "temperature": ' + number + b"}"
    status, error = await posted(served, body)
    assert (status, error["code"]) == (400, "invalid_request")


async def test_nul_and_control_characters_are_text(served: Served) -> None:
    text = "a\0b\x1b[31m\u202e\U0010ffff"
    status, _ = await posted(served, chat_body(messages=[{"role": "user", "content": text}]))
    assert status == 200
    prompt = served.dispatcher.jobs[0].params[0].prompt
    assert any(text in span.text for span in prompt if not span.control)


async def test_of_two_keys_the_later_counts(served: Served) -> None:
    status, _ = await posted(served, chat_body()[:-1] + b', "seed": 1, "seed": 2}')
    assert status == 200
    assert served.dispatcher.jobs[0].params[0].sampling.seed == 2


async def test_ten_thousand_messages_are_answered(served: Served) -> None:
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": f"message {index}"}
        for index in range(10_001)
    ]
    status, _ = await posted(served, chat_body(messages=messages))
    assert status == 200
    text = "".join(span.text for span in served.dispatcher.jobs[0].params[0].prompt)
    assert text.count("message ") == 10_001


async def test_ten_megabytes_of_one_message_are_passed_on(served: Served) -> None:
    status, _ = await posted(served, chat_body(messages=[{"role": "user", "content": "äb " * 2_500_000}]))
    assert status == 200
    assert len(served.dispatcher.counted) == 1


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_the_content_type_does_not_matter(served: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    response = await served.client.post("/v1/chat/completions", content=chat_body(), headers=headers)
    assert response.status_code == 200


@pytest_asyncio.fixture(loop_scope="module")
async def narrow(tmp_path: Path) -> AsyncIterator[Served]:
    """A server that takes bodies of at most one megabyte."""
    async with serving(tmp_path, max_body_mb=1) as running:
        yield running


LIMIT = 2**20


def padded(size: int) -> bytes:
    """Return a good request of exactly this many bytes."""
    start = chat_body()
    return start + b" " * (size - len(start))


async def test_the_limit_is_exact(narrow: Served) -> None:
    assert (await posted(narrow, padded(LIMIT)))[0] == 200
    status, error = await posted(narrow, padded(LIMIT + 1))
    assert (status, error["code"]) == (413, "body_too_large")
    assert "1 MB" in error["message"]


async def test_the_limit_of_chunked_bodies_is_exact(narrow: Served) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413)):
        body = padded(size)
        async with connected(narrow.port) as raw:
            # The last chunk brings a single byte.
            await raw.send(head + chunk(body[: LIMIT // 2]) + chunk(body[LIMIT // 2 : -1]))
            await raw.send(chunk(body[-1:]) + chunk(b""))
            assert (await raw.response())[0] == status


async def test_chunked_bodies_are_counted(narrow: Served) -> None:
    async with connected(narrow.port) as raw:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        await raw.send(head + b"".join(chunk(b" " * 1000) for _ in range(LIMIT // 1000 + 1)))
        assert await raw.error() == (413, "body_too_large")
        # What is left of the body is read and thrown away, then the connection serves on.
        await raw.send(chunk(b" " * 1000) + chunk(b""))
        await raw.send(post(chat_body()))
        assert (await raw.response())[0] == 200


async def test_a_length_over_the_limit_is_refused_before_the_body_comes(narrow: Served) -> None:
    async with connected(narrow.port) as raw:
        await raw.send(post(b"", b"expect: 100-continue", length=LIMIT + 1))
        assert await raw.error() == (413, "body_too_large")
        assert narrow.dispatcher.jobs == []


async def test_a_length_that_lies_does_not_help(narrow: Served) -> None:
    async with connected(narrow.port) as raw:
        # Too small: the rest is no request. Too large: the server waits, the client leaves.
        await raw.send(post(chat_body() + b"x" * 50, length=len(chat_body())))
        assert (await raw.response())[0] == 200
        assert await raw.rest() == b""
    async with connected(narrow.port) as raw:
        await raw.send(post(chat_body(), length=len(chat_body()) + 10))
    assert (await narrow.chat()).status_code == 200
    assert len(narrow.dispatcher.jobs) == 2


async def test_both_lengths_at_once_are_refused(narrow: Served) -> None:
    async with connected(narrow.port) as raw:
        await raw.send(post(chunk(chat_body()) + chunk(b""), b"transfer-encoding: chunked"))
        assert (await raw.error())[0] == 400
    assert narrow.dispatcher.jobs == []


async def test_a_body_cut_short_is_no_error_in_the_log(
    narrow: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        async with connected(narrow.port) as raw:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            await raw.send(head + b"ff\r\n{")
            await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            while not any("499" in record.getMessage() for record in caplog.records):
                await asyncio.sleep(0.01)  # the line is written when the server notices
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_a_body_that_stops_is_given_up(narrow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "SILENCE_S", 0.1)
    async with connected(narrow.port) as raw:
        await raw.send(post(b"{", length=100))
        status, _, body = await raw.response()
        assert status == 400
        assert "stopped" in json.loads(body)["error"]["message"]


async def test_a_body_that_trickles_is_given_up(narrow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "SILENCE_S", 0.5)
    async with connected(narrow.port) as raw:
        await raw.send(post(b"{", length=100_000))
        answered = asyncio.ensure_future(raw.response())
        while not answered.done():
            await raw.send(b" ")
            await asyncio.sleep(0.02)
        status, _, body = await answered
        assert status == 400
        assert "too slowly" in json.loads(body)["error"]["message"]


async def test_a_slow_body_that_goes_on_has_its_time(narrow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "SILENCE_S", 2.0)
    monkeypatch.setattr(body_module, "FLOOR_BYTES_PER_S", 1000)
    body = padded(30_000)
    async with connected(narrow.port) as raw:
        await raw.send(post(b"", length=len(body)))
        for start in range(0, len(body), 1000):
            await raw.send(body[start : start + 1000])
            await asyncio.sleep(0.1)
        assert (await raw.response())[0] == 200

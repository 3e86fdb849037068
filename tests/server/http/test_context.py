"""Request ids and the access log."""

from __future__ import annotations

import pytest

from tests.server.http.raw import connected
from tests.server.scripted import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_response_has_an_id(served: Served) -> None:
    ids = {
        (await served.client.get("/health")).headers["x-request-id"],
        (await served.client.get("/nothing")).headers["x-request-id"],
        (await served.chat(stream=True)).headers["x-request-id"],
        (await served.chat(n=0)).headers["x-request-id"],
    }
    assert len(ids) == 4


async def test_a_sane_id_of_the_client_is_kept_and_another_is_not(served: Served) -> None:
    kept = await served.client.get("/health", headers={"x-request-id": "abc-1.2_3"})
    assert kept.headers["x-request-id"] == "abc-1.2_3"
    for odd in ("a b", "x" * 65, "a;b", "\u00e9"):
        replaced = await served.client.get("/health", headers={b"x-request-id": odd.encode()})
        assert replaced.headers["x-request-id"].startswith("req-")


async def test_a_request_is_one_line_without_query_key_or_prompt(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        await served.client.post(
            "/v1/chat/completions?api_key=secret-query",
            json={"model": "tiny", "messages": [{"role": "user", "content": "secret-prompt"}]},
            headers={"authorization": "Bearer secret-key"},
        )
    lines = [record.getMessage() for record in caplog.records if record.name == "rkserve.access"]
    assert len(lines) == 1
    assert lines[0].startswith("POST /v1/chat/completions 200 in ")
    assert lines[0].endswith(" for 127.0.0.1")
    for record in caplog.records:
        if not record.name.startswith(("httpx2", "httpcore2")):  # the client of this test
            assert "secret" not in record.getMessage()


async def test_a_path_cannot_break_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        async with connected(served.port) as raw:
            await raw.send(b"GET /a%0aGET%20/health%20200\x1b[31m HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await raw.error())[0] in (400, 404)
    for record in caplog.records:
        assert not set("\n\x1b") & set(record.getMessage())


async def test_a_stream_that_was_read_to_its_end_is_logged_as_answered(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        for _ in range(5):
            assert (await served.chat(stream=True)).text.endswith("data: [DONE]\n\n")
        await served.client.get("/health")
    lines = [record.getMessage() for record in caplog.records if record.name == "rkserve.access"]
    assert [line.split(" in ")[0] for line in lines] == ["POST /v1/chat/completions 200"] * 5 + [
        "GET /health 200"
    ]

"""Streamed chat completions: the exact sequence of events, when the headers come, what happens on failure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from backends.base import TokenLogprob
from backends.protocol import Loading, Prefill
from server.errors import BackendCrashed, LoadFailed
from server.scheduling import Queued, Run
from tests.server.scripted import Served, delta, fails, finished, loaded, says, serving, waits

pytestmark = pytest.mark.asyncio(loop_scope="module")


def events(text: str) -> list[Any]:
    """Return the data of each event, parsed; comments and [DONE] as they are."""
    found: list[Any] = []
    assert text.endswith("\n\n")
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith("data: {"):
            found.append(json.loads(block.removeprefix("data: ")))
        else:
            found.append(block)
    return found


async def test_no_character_of_a_text_ends_a_line(served: Served) -> None:
    # Every character at which str.splitlines cuts, as httpx's iter_lines does.
    text = "a\u2028b\u2029c\u0085d\r\n\x0b\x0c\x1c\x1d\x1e 世界"
    served.dispatcher.statuses = [loaded("tiny")]
    served.dispatcher.script = says(text, text)
    response = await served.chat(stream=True)
    told = [
        json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content")
        for line in response.text.splitlines()
        if line.startswith("data: {")
    ]
    assert [content for content in told if content] == [text, text]


async def test_a_stream_is_role_pieces_reason_and_done(served: Served) -> None:
    served.dispatcher.statuses = [loaded("tiny")]
    served.dispatcher.script = says("Hel", "lo", '\n\u2028"\\', "世界")
    response = await served.chat(stream=True)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert "content-length" not in response.headers
    *chunks, done = events(response.text)
    assert done == "data: [DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["created"] for chunk in chunks}) == 1
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["model"] == "tiny"
        assert chunk["system_fingerprint"] == "hybrid-onnxruntime-9.9.9"
        assert "usage" not in chunk
    assert [chunk["choices"] for chunk in chunks] == [
        [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "", "refusal": None},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        *(
            [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]
            for text in ("Hel", "lo", '\n\u2028"\\', "世界")
        ),
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
    ]


async def test_usage_comes_last_and_is_null_before(served: Served) -> None:
    response = await served.chat(stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(response.text)
    assert done == "data: [DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 7
    assert usage["usage"]["completion_tokens"] == 2
    assert usage["usage"]["total_tokens"] == 9
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_each_choice_has_its_own_role_and_end(served: Served) -> None:
    served.dispatcher.script = says("a", "b")
    response = await served.chat(stream=True, n=2, stream_options={"include_usage": True})
    *chunks, usage, _ = events(response.text)
    told = [
        (
            chunk["choices"][0]["index"],
            chunk["choices"][0]["delta"].get("content"),
            chunk["choices"][0]["finish_reason"],
        )
        for chunk in chunks
    ]
    assert told == [
        (0, "", None),
        (0, "a", None),
        (0, "b", None),
        (0, None, "stop"),
        (1, "", None),
        (1, "a", None),
        (1, "b", None),
        (1, None, "stop"),
    ]
    assert usage["usage"]["prompt_tokens"] == 7
    assert usage["usage"]["completion_tokens"] == 4


async def test_logprobs_come_with_their_chunk(served: Served) -> None:
    async def script(run: Run) -> None:
        run.push(0, delta("Hi", [TokenLogprob("Hi", b"Hi", -0.5, [])]))
        run.push(0, delta("", [TokenLogprob("\ufffd", b"\xe4", -1.0, [])]))
        run.push(0, finished())

    served.dispatcher.script = script
    response = await served.chat(stream=True, logprobs=True)
    chunks = events(response.text)[1:3]
    assert [chunk["choices"][0]["logprobs"]["content"][0]["bytes"] for chunk in chunks] == [[72, 105], [0xE4]]
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["Hi", ""]


async def test_reasoning_is_streamed_apart(served: Served) -> None:
    served.dispatcher.script = says("<thi", "nk>I ", "see", "</th", "ink>", "Paris")
    response = await served.chat(model="thinker", stream=True, stream_options={"include_usage": True})
    *chunks, usage, _ = events(response.text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]]
    assert deltas == [
        {"reasoning_content": "I"},
        {"reasoning_content": " see"},
        {"content": "Paris"},
    ]
    assert usage["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


async def test_a_failure_before_the_first_text_has_its_status(served: Served) -> None:
    served.dispatcher.script = fails(LoadFailed("the model does not load: no such library"))
    response = await served.chat(stream=True)
    assert response.status_code == 503
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["code"] == "load_failed"


async def test_a_failure_after_the_first_text_is_an_event_and_the_last(served: Served) -> None:
    served.dispatcher.script = fails(BackendCrashed("the worker died"), "Hel")
    response = await served.chat(stream=True)
    assert response.status_code == 200
    *_, text, error = events(response.text)
    assert text["choices"][0]["delta"] == {"content": "Hel"}
    assert error == {
        "error": {
            "message": "the worker died",
            "type": "server_error",
            "param": None,
            "code": "backend_crashed",
        }
    }


async def test_a_fault_of_our_own_in_mid_stream_is_an_event(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(run: Run) -> None:
        run.push(0, delta("Hel"))
        await asyncio.sleep(0.01)
        run.push(5, delta("for a choice that is not there"))

    served.dispatcher.script = script
    response = await served.chat(stream=True)
    assert events(response.text)[-1]["error"]["code"] == "internal_error"
    assert "IndexError" in caplog.text


async def test_headers_come_after_the_ping_time_and_comments_tell_the_state(tmp_path: Path) -> None:
    async with serving(tmp_path, stream_ping_s=0.1) as served:
        step = asyncio.Event()

        async def script(run: Run) -> None:
            for event in (Queued(3), Loading(0.4, "weights"), Prefill(1, 512, 2048)):
                run.push(0, event)
                await step.wait()
                step.clear()
            run.push(0, delta("Hel"))
            await step.wait()
            run.fail(BackendCrashed("the worker died"))

        served.dispatcher.script = script
        seen: list[str] = []
        async with served.streaming() as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith(":") and line not in seen:
                    step.set()
                if line and line not in seen:
                    seen.append(line)
        comments = [line for line in seen if line.startswith(":")]
        assert comments == [": queued 3", ": loading 40 %", ": prefill 512/2048", ": ping"]
        assert json.loads(seen[-1].removeprefix("data: "))["error"]["code"] == "backend_crashed"


async def test_a_comment_never_splits_an_event(tmp_path: Path) -> None:
    async with serving(tmp_path, stream_ping_s=0.05) as served:

        async def script(run: Run) -> None:
            for _ in range(20):
                run.push(0, delta("x"))
                await asyncio.sleep(0.02)
            run.push(0, finished())

        served.dispatcher.script = script
        *blocks, rest = (await served.chat(stream=True)).text.split("\n\n")
        comments = [block for block in blocks if block.startswith(":")]
        assert comments == [": ping"] * len(comments) and comments
        events = [block.removeprefix("data: ") for block in blocks if block not in comments]
        assert len(events) == 23 and events.pop() == "[DONE]" and rest == ""
        assert [json.loads(event)["object"] for event in events] == ["chat.completion.chunk"] * 22


async def test_each_piece_leaves_at_once(served: Served) -> None:
    step = asyncio.Event()

    async def script(run: Run) -> None:
        for _ in range(5):
            await step.wait()
            step.clear()
            run.push(0, delta("x"))
        await step.wait()
        run.push(0, finished())

    served.dispatcher.script = script
    step.set()
    pieces = 0
    async with served.streaming() as response:
        async for line in response.aiter_lines():
            if '"content":"x"' in line:
                pieces += 1
                step.set()
    assert pieces == 5


async def test_a_waiting_stream_has_no_headers_yet(served: Served) -> None:
    served.dispatcher.script = waits(Queued(1))
    with pytest.raises(httpx2.ReadTimeout):
        async with served.client.stream(
            "POST",
            "/v1/chat/completions",
            json={"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True},
            timeout=0.3,
        ):
            pass
    await served.dispatcher.run_left()


async def test_dropped_tools_are_said_in_a_header(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for stream in (False, True):
        response = await served.chat(stream=stream, tools=tools, tool_choice="auto")
        assert response.status_code == 200
        assert response.headers["x-rkserve-dropped"] == "tools"
        response = await served.chat(stream=stream, tools=tools, tool_choice="none")
        assert "x-rkserve-dropped" not in response.headers

"""Workers that die, freeze, stall or refuse to load: who gets which error, and that the next is served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from backends.protocol import Delta
from server.errors import (
    ApiError,
    BackendCrashed,
    BackendTimeout,
    InsufficientMemory,
    LoadFailed,
    ModelCorrupt,
)
from tests.server.runs import arrived
from tests.server.workers.harness import Harness, first, harness, until

SEGV, KILL = int(signal.SIGSEGV), int(signal.SIGKILL)


async def fails(h: Harness, text: str, error: type[ApiError]) -> str:
    with pytest.raises(ApiError) as failure:
        await h.events("a", text)
    assert type(failure.value) is error
    return failure.value.message


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"prefill:1 kill:{SEGV}", "SIGSEGV"),
        (f"prefill:1 kill:{KILL}", "SIGKILL"),
        (f"tokens:2 say:7 kill:{SEGV}", "line 7"),
        (f"tokens:2 c-say kill:{KILL}", "from C"),
        ("tokens:2 exit:7", "status 7"),
        ("tokens:2 bug", "ZeroDivisionError: a bug in the backend"),
        ("tokens:2 lost", "the engine is lost"),
    ],
)
async def test_a_worker_dies_in_a_run(tmp_path: Path, text: str, cause: str) -> None:
    async with harness(tmp_path) as h:
        pid = await h.answer("a", "pid")
        async with h.submit("a", f"delay:0.05 {text}") as dies:
            waiting = [asyncio.ensure_future(h.answer("a", "pid", client=f"{i}")) for i in range(3)]
            with pytest.raises(BackendCrashed) as crash:
                async for _ in dies:
                    pass
        assert cause in crash.value.message
        # Those who waited are served by a new worker, and what killed the old one is not tried again.
        others = set(await asyncio.gather(*waiting))
        assert len(others) == 1
        assert pid not in others
        assert await h.answer("a", "runs") == "4"


async def test_output_for_one_client_is_not_shown_to_the_next(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        await h.answer("a", "say:1234")
        assert "1234" not in await fails(h, f"tokens:1 kill:{SEGV}", BackendCrashed)


async def test_a_worker_dies_idle(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        pid = int(await h.answer("a", "pid"))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not h.status("a").loaded, "notice of the end")
        assert int(await h.answer("a", "pid")) != pid


@pytest.mark.parametrize(
    ("commands", "cause"),
    [(f"say:3 kill:{SEGV}", "line 3"), ("say:3 exit:0", "line 3"), ("bug", "ZeroDivisionError: a bug")],
)
async def test_a_worker_dies_in_the_load(tmp_path: Path, commands: str, cause: str) -> None:
    async with harness(tmp_path) as h:
        h.script_load("a", commands)
        # All who wait for the load get its error, from one attempt.
        results = await asyncio.gather(
            *(h.answer("a", "pid", client=f"{i}") for i in range(3)), return_exceptions=True
        )
        for result in results:
            assert type(result) is LoadFailed
            assert cause in result.message
        assert len(h.loads("a")) == 1
        assert h.status("a").error is not None
        h.script_load("a", "")
        assert await h.answer("a", "tokens:1") == "t0 "
        assert h.status("a").error is None


@pytest.mark.parametrize(
    ("commands", "error", "text"),
    [
        ("cannot-load", ModelCorrupt, "segment 3 is damaged"),
        ("no-memory", InsufficientMemory, "no more memory"),
        ("not-installed", LoadFailed, "not installed whole"),
        ("blames-request", LoadFailed, "odd"),
    ],
)
async def test_a_load_that_fails_with_a_reason(
    tmp_path: Path, commands: str, error: type[ApiError], text: str
) -> None:
    async with harness(tmp_path) as h:
        h.script_load("a", commands)
        assert text in await fails(h, "tokens:1", error)


async def test_a_worker_that_cannot_be_started(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        h.dispatcher._pool._command = ("/nonexistent/python",)
        assert "/nonexistent/python" in await fails(h, "tokens:1", LoadFailed)


async def test_without_descriptors_left_the_server_goes_on(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        taken = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            await fails(h, "tokens:1", LoadFailed)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken:
                os.close(fd)
        assert await h.answer("a", "tokens:1") == "t0 "


FROZEN: dict[str, Any] = {"heartbeat_s": 1.0}


@pytest.mark.parametrize("command", ["stop-self", "hang-in-c"])
async def test_a_worker_freezes_in_a_run(tmp_path: Path, command: str) -> None:
    async with harness(tmp_path, **FROZEN) as h:
        pid = await h.answer("a", "pid")
        waiting_text = "pid"
        async with h.submit("a", f"tokens:1 {command}") as frozen:
            waiting = asyncio.ensure_future(h.answer("a", waiting_text))
            with pytest.raises(BackendTimeout, match="no sign of life"):
                async for _ in frozen:
                    pass
        assert await waiting != pid


@pytest.mark.parametrize("command", ["stop-self", "hang-in-c"])
async def test_a_worker_freezes_in_the_load(tmp_path: Path, command: str) -> None:
    async with harness(tmp_path, **FROZEN) as h:
        h.script_load("a", command)
        await fails(h, "tokens:1", BackendTimeout)


async def test_a_worker_freezes_idle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with harness(tmp_path, **FROZEN) as h:
        pid = int(await h.answer("a", "pid"))
        os.kill(pid, signal.SIGSTOP)
        with caplog.at_level("INFO", "server.workers"):
            await until(lambda: not h.status("a").loaded, "notice of the freeze")
            await until(lambda: not h.dispatcher._pool.slots, "its end")
        # We ended it: nobody did by hand, nor the kernel.
        assert caplog.records[-1].getMessage() == (
            f"the worker of a, pid {pid}, was ended: it gave no sign of life for 1 s"
        )
        assert "SIGKILL" not in caplog.text
        assert int(await h.answer("a", "pid")) != pid


async def test_a_worker_without_heartbeat_in_use_is_not_frozen(tmp_path: Path) -> None:
    async with harness(tmp_path, **FROZEN) as h:
        assert await h.answer("a", "delay:1.2 tokens:1") == "t0 "


async def test_decode_stalls(tmp_path: Path) -> None:
    async with harness(tmp_path, stall_s=1.0) as h:
        assert "no progress" in await fails(h, "prefill:1 tokens:2 hang", BackendTimeout)
        assert await h.answer("a", "delay:0.4 tokens:4") == "t0 t1 t2 t3 "


async def test_the_load_takes_too_long(tmp_path: Path) -> None:
    async with harness(tmp_path, load_timeout_s=0.6) as h:
        h.script_load("a", "hang")
        assert "0.6 s" in await fails(h, "tokens:1", BackendTimeout)
        h.script_load("a", "")
        assert await h.answer("a", "tokens:1") == "t0 "


async def test_a_child_of_the_worker_goes_with_it(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        # It inherits the socket and the pipe: neither may keep the server waiting.
        await fails(h, f"tokens:1 child kill:{SEGV}", BackendCrashed)
        assert await h.answer("a", "tokens:1") == "t0 "


async def test_a_worker_that_prints_without_end_holds_up_nobody(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b")) as h:
        await h.answer("b", "pid")
        async with h.submit("a", "tokens:1 flood:0.7 flood-one-line:0.7 tokens:1") as floods:
            await first(floods, Delta)
            assert len((await h.answer("b", "tokens:1000")).split()) == 1000
            assert arrived(floods) == []  # it still prints
            await first(floods, Delta)


async def test_what_a_worker_printed_for_one_request_is_shown_to_no_other(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        told = await fails(h, f"tokens:1 say:7 kill:{KILL}", BackendCrashed)
        assert "Its last output: line 7" in told
        error = h.status("a").error or ""
        assert "SIGKILL" in error and "line 7" not in error
        assert await h.answer("a", "tokens:1") == "t0 "
        assert h.status("a").error is None

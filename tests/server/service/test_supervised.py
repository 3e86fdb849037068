"""The server under a service manager: ready, alive, how it stands, stopping, its log in the journal."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from pathlib import Path

import psutil

from tests.server.service.manager import managed


async def test_it_says_that_it_is_ready_how_it_stands_and_that_it_stops(tmp_path: Path) -> None:
    async with managed(tmp_path, f"@{tmp_path}", watchdog_s=0.3) as manager:
        assert await manager.says("one", "tokens:1") == "t0 "
        while (await manager.told_of("STATUS"))["STATUS"] != "loaded: one":
            pass
        (worker,) = psutil.Process(manager.process.pid if manager.process else 0).children()
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & worker.environ().keys()
        manager.signal(signal.SIGTERM)
        stopping = await manager.told_of("STOPPING")
        assert stopping["EXTEND_TIMEOUT_USEC"] == "2500000"  # the grace time of 0.5 s and two seconds
        assert await manager.ended() == 0


async def test_the_watchdog_is_fed_by_the_loop_while_it_turns_and_no_longer(tmp_path: Path) -> None:
    async with managed(tmp_path, watchdog_s=0.6) as manager:
        begun = time.monotonic()
        for _ in range(5):
            await manager.told_of("WATCHDOG")
        assert time.monotonic() - begun >= 0.6
        manager.signal(signal.SIGSTOP)
        await asyncio.sleep(0.1)
        manager.drain()
        await asyncio.sleep(1.0)
        assert manager.drain() == 0
        # What systemd does about it: the log then shows where the server was.
        manager.signal(signal.SIGABRT)
        manager.signal(signal.SIGCONT)
        assert await manager.ended() == -signal.SIGABRT
    assert b"Fatal Python error: Aborted" in manager.log
    assert b"uvicorn" in manager.log


async def test_without_a_watchdog_it_is_ready_all_the_same(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        assert await manager.says("one", "tokens:1") == "t0 "


async def test_a_slow_preload_does_not_keep_it_from_being_ready(tmp_path: Path) -> None:
    (tmp_path / "one" / "folder").mkdir(parents=True)
    (tmp_path / "one" / "folder" / "load-script").write_text("hang:60")
    async with managed(tmp_path, watchdog_s=0.3, PRELOAD="one") as manager:
        assert manager.first["STATUS"] == "loading: one"
        manager.signal(signal.SIGTERM)
        assert await manager.ended() == 0


async def test_the_journal_gets_priorities_and_no_second_time(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        await manager.says("one", "tokens:1")
        await manager.ask("one", "bug")
        manager.signal(signal.SIGTERM)
        await manager.ended()
    lines = manager.log.decode().splitlines()
    assert all(re.match(r"<[3467]>", line) for line in lines), lines
    assert not [line for line in lines if re.match(r"<\d>\d{4}-\d\d-\d\d", line)]
    assert [line for line in lines if re.match(r"<6>server.serving: ready at http://127.0.0.1:\d+/v1$", line)]
    assert [line for line in lines if line.startswith("<4>") and line.endswith("one: w")]
    assert [line for line in lines if line.startswith("<3>")]
    assert not [line for line in lines if "Ctrl+C" in line]

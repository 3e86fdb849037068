"""Models that are loaded at the start and stay."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from server.scheduling import Dispatcher
from server.settings import SettingsError
from tests.server.workers.harness import Harness, harness, until


async def test_preloaded_models_are_there_without_a_request(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b", "c"), preload=("a", "b")) as h:
        assert h.dispatcher.unready() == {"a": None, "b": None}
        await until(lambda: not h.dispatcher.unready(), "the preload")
        assert [h.status(name).loaded for name in "abc"] == [True, True, False]


async def test_a_request_joins_the_preload(tmp_path: Path) -> None:
    async with harness(tmp_path, queue_size=1, preload=("a",)) as h:
        h.script_load("a", "hang:0.2")
        assert await h.answer("a", "runs") == "1"
        assert len(h.loads("a")) == 1


async def test_a_preload_that_fails_leaves_the_server_running(tmp_path: Path) -> None:
    h = Harness(tmp_path, cpu=("a", "b"), preload=("a", "b"))
    h.script_load("a", "cannot-load")
    await h.dispatcher.start()
    try:
        await until(lambda: h.status("b").loaded, "the other preload")
        assert h.dispatcher.unready() == {"a": "segment 3 is damaged"}
        assert h.status("a").error == "segment 3 is damaged"
        assert await h.answer("b", "tokens:1") == "t0 "
        h.script_load("a", "")  # mended: the next request loads it, and it stays
        assert await h.answer("a", "tokens:1") == "t0 "
        assert not h.dispatcher.unready()
    finally:
        await h.dispatcher.stop()


async def test_one_that_is_killed_in_its_first_load_is_pinned_once_it_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    h = Harness(tmp_path, preload=("a",), idle_unload_s=1)
    h.script_load("a", "hang:60")
    await h.dispatcher.start()
    try:
        await until(lambda: h.loads("a"), "the load")
        os.kill(h.loads("a")[0], signal.SIGKILL)
        await until(lambda: (h.dispatcher.unready()["a"] or "").count("SIGKILL"), "notice of its death")
        h.script_load("a", "")
        pid = await h.answer("a", "pid")
        assert not h.dispatcher.unready()
        assert h.status("a").error is None
        assert "a is there again" in caplog.messages
        # As one that is pinned: it does not go when idle, and comes back.
        await asyncio.sleep(1.5)
        assert await h.answer("a", "pid") == pid
        os.kill(int(pid), signal.SIGKILL)
        await until(lambda: h.dispatcher.unready(), "notice of the crash")
        await until(lambda: not h.dispatcher.unready(), "the reload")
    finally:
        await h.dispatcher.stop()


async def test_a_preload_that_is_not_installed_says_so(tmp_path: Path) -> None:
    h = Harness(tmp_path, preload=("a",))
    (tmp_path / "a" / "meta2.json").unlink()
    await h.dispatcher.start()
    try:
        await until(lambda: h.status("a").error, "the reason")
        assert "RKSERVE_MODELS_DIR/a" in (h.status("a").error or "")
        assert h.dispatcher.unready() == {"a": h.status("a").error}
    finally:
        await h.dispatcher.stop()


def test_a_preload_that_nobody_knows_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"RKSERVE_PRELOAD: .*smol"):
        Harness(tmp_path, preload=("smol",))


async def test_a_pinned_model_comes_back_after_a_crash(tmp_path: Path) -> None:
    async with harness(tmp_path, preload=("a",)) as h:
        pid = int(await h.answer("a", "pid"))
        os.kill(pid, signal.SIGSEGV)
        await until(lambda: h.dispatcher.unready(), "notice of the crash")
        assert h.dispatcher.unready() == {"a": None}  # it comes back by itself
        await until(lambda: not h.dispatcher.unready(), "the reload")
        assert int(await h.answer("a", "pid")) != pid


async def test_one_whose_worker_is_just_ending_is_not_called_lost(tmp_path: Path) -> None:
    async with harness(tmp_path, preload=("a",)) as h:
        await h.answer("a", "tokens:1")
        await until(lambda: not h.dispatcher._preloader.tasks, "the end of the preload")
        slot = h.dispatcher._pool.get(h.entries["a"])
        assert slot is not None and slot.client is not None
        slot.client.unload()
        assert h.dispatcher.unready() == {"a": None}
        await until(lambda: not h.dispatcher.unready(), "the reload")


async def test_one_that_dies_before_its_first_answer_is_not_loaded_over_and_over(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b"), preload=("a",)) as h:
        await until(lambda: not h.dispatcher.unready(), "the preload")
        os.kill(h.loads("a")[0], signal.SIGKILL)
        await until(lambda: h.dispatcher.unready(), "notice of the crash")
        assert await h.answer("b", "tokens:1") == "t0 "
        assert len(h.loads("a")) == 1
        assert h.dispatcher.unready()
        assert "SIGKILL" in (h.status("a").error or "")


def test_the_default_command_is_safe_from_folders_of_the_same_name() -> None:
    from server.scheduling import DEFAULT_WORKER_COMMAND

    assert DEFAULT_WORKER_COMMAND[1:] == ("-P", "-m", "backends.worker")
    assert Dispatcher.__init__.__defaults__ == (DEFAULT_WORKER_COMMAND,)

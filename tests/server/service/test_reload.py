"""models.yaml read again on SIGHUP: what is under way goes on, what changed is loaded anew."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx2
import pytest

from tests.server.service.manager import managed


async def test_an_answer_under_way_ends_as_it_began_and_the_next_has_a_new_worker(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        manager.install(one={}, two={})
        assert "changed two" in await manager.reload()
        before = {model: await manager.says(model, "pid") for model in ("one", "two")}
        running = asyncio.create_task(manager.says("one", "delay:0.05 tokens:40 pid"))
        await asyncio.sleep(0.3)
        waiting = asyncio.create_task(manager.says("one", "pid"))  # made for the worker as it is
        await asyncio.sleep(0.2)
        manager.install(one={"max_tokens": 77, "aliases": ["uno"]}, two={})
        assert "changed one" in await manager.reload()
        after = await manager.says("uno", "pid")
        assert (await running).endswith(before["one"])
        assert await waiting == before["one"]
        assert after != before["one"]
        assert await manager.says("one", "pid") == after
        assert await manager.says("two", "pid") == before["two"]
        async with httpx2.AsyncClient(base_url=manager.url) as client:
            assert (await client.get("/v1/models/one")).json()["max_tokens"] == 77


async def test_a_broken_file_changes_nothing_and_is_told(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        pid = await manager.says("one", "pid")
        manager.write("version: 1\nmodels:\n  one:\n    bakend: hybrid\n")
        said = await manager.reload()
        assert "models.yaml:4: models.one.bakend: unknown key" in said
        assert "models.yaml was not taken over; the models stay as they were" in said
        (tmp_path / "models.yaml").unlink()
        assert "cannot be read" in await manager.reload()
        assert await manager.says("one", "pid") == pid
        assert manager.process is not None
        assert manager.process.returncode is None


async def test_a_first_models_yaml_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    async with managed(tmp_path, MODELS_FILE="") as manager:
        assert (await manager.ask("one", "pid")).status_code == 404
        own = tmp_path / "config" / "rkserve" / "models.yaml"
        own.parent.mkdir(parents=True)
        own.write_text((tmp_path / "models.yaml").read_text())
        assert "changed one" in await manager.reload()
        assert await manager.says("one", "tokens:1") == "t0 "


async def test_a_model_that_is_taken_out_ends_and_is_no_longer_known(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        await manager.says("one", "pid")
        manager.install(two={})
        assert "changed one, two" in await manager.reload()
        answer = await manager.ask("one", "pid")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert await manager.says("two", "tokens:1") == "t0 "


async def test_a_preloaded_model_comes_back_by_itself_and_may_not_be_taken_out(tmp_path: Path) -> None:
    async with managed(tmp_path, PRELOAD="one", watchdog_s=0.3) as manager:
        pid = await manager.says("one", "pid")
        manager.install(two={})
        assert 'RKSERVE_PRELOAD: There is no model "one"' in await manager.reload()
        manager.install(one={"memory_mb": 51})
        await manager.reload()
        async with asyncio.timeout(20):
            while len((tmp_path / "one" / "folder" / "loads").read_text().split()) < 2:
                await asyncio.sleep(0.01)  # another process writes it
        assert await manager.says("one", "pid") != pid


async def test_signals_in_a_row_are_one_after_another_and_none_is_lost(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        for number in range(20):
            manager.install(one={"max_tokens": 100 + number})
            manager.signal(signal.SIGHUP)
        async with asyncio.timeout(20), httpx2.AsyncClient(base_url=manager.url) as client:
            while (await client.get("/v1/models/one")).json()["max_tokens"] != 119:
                await asyncio.sleep(0.02)  # the signal and the file are of another process
        assert manager.process is not None
        assert manager.process.returncode is None

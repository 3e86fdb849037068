"""Which models stay loaded: eviction under the memory budget, pinning, idle unloading."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backends.protocol import Delta, Finished
from server.errors import InsufficientMemory
from server.scheduling import Queued
from tests.server.runs import arrived
from tests.server.workers.harness import Harness, first, harness, until

MB = dict.fromkeys("abcd", 100)


def loaded(h: Harness) -> set[str]:
    return {name for name in h.entries if h.status(name).loaded}


async def test_the_least_recently_used_makes_room(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b", "c"), memory_mb=MB, available_mb=250) as h:
        for name in "aba":
            await h.answer(name, "tokens:1")
        assert loaded(h) == {"a", "b"}
        await h.answer("c", "tokens:1")
        assert loaded(h) == {"a", "c"}


async def test_as_many_go_as_must(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b", "c"), memory_mb=MB | {"c": 150}, available_mb=200) as h:
        await h.answer("a", "tokens:1")
        await h.answer("b", "tokens:1")
        await h.answer("c", "tokens:1")
        assert loaded(h) == {"c"}


async def test_the_reserve_is_kept_free(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b"), memory_mb=MB, available_mb=250, memory_reserve_mb=60) as h:
        await h.answer("a", "tokens:1")
        await h.answer("b", "tokens:1")
        assert loaded(h) == {"b"}


async def test_what_can_never_fit_is_refused_at_once_with_the_numbers(tmp_path: Path) -> None:
    async with harness(
        tmp_path, cpu=("a", "b"), memory_mb={"b": 300}, available_mb=320, memory_reserve_mb=50
    ) as h:
        await h.answer("a", "tokens:1")
        with pytest.raises(InsufficientMemory) as refused:
            h.submit("b", "tokens:1")
        for number in ("300 MB", "170 MB can be had", "220 MB are available", "keeps 50", "a (100 MB)"):
            assert number in refused.value.message
        assert await h.answer("a", "tokens:1") == "t0 "


async def test_a_pinned_model_is_never_evicted(tmp_path: Path) -> None:
    async with harness(
        tmp_path, cpu=("a", "b", "c"), memory_mb=MB, available_mb=250, preload=("a",), idle_unload_s=0.1
    ) as h:
        await until(lambda: not h.dispatcher.unready(), "the preload")
        await h.answer("b", "tokens:1")
        await h.answer("c", "tokens:1")
        assert "a" in loaded(h)
        await until(lambda: [slot.entry.id for slot in h.dispatcher._pool.slots] == ["a"], "the others' end")
        assert len(h.loads("a")) == 1
        h.entries["d"] = h.entries["c"].model_copy(update={"memory_mb": 200})
        with pytest.raises(InsufficientMemory, match="a \\(100 MB, pinned\\)"):
            h.submit("d", "tokens:1")


async def test_a_busy_model_is_waited_for_and_its_users_are_not_cut(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b"), memory_mb=MB, available_mb=150) as h:
        async with h.submit("a", "endless") as busy:
            await first(busy, Delta)
            waits = h.submit("b", "tokens:1")
            assert arrived(waits) == [(0, Queued(0))]
            await first(busy, Delta)
            assert loaded(h) == {"a"}
        async with waits:
            await first(waits, Finished)
        assert loaded(h) == {"b"}


async def test_a_busy_model_does_not_keep_its_memory_for_ever(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b"), memory_mb=MB, available_mb=150) as h:
        served: list[str] = []

        async def ask(name: str, client: str) -> None:
            await h.answer(name, "tokens:1", client=client)
            served.append(name)

        await ask("a", "0")
        async with h.submit("a", "endless") as busy:
            await first(busy, Delta)
            asks = [asyncio.ensure_future(ask("b", "patient"))]
            asks += [asyncio.ensure_future(ask("a", f"{number}")) for number in range(12)]
            await asyncio.sleep(0.05)
        await asyncio.gather(*asks)
        assert served.index("b") == 1 + 4  # the first ask, and those that may pass


async def test_an_idle_model_goes_and_comes_back(tmp_path: Path) -> None:
    async with harness(tmp_path, idle_unload_s=0.8) as h:
        pid = await h.answer("a", "pid")
        assert await h.answer("a", "delay:0.4 tokens:3 runs") == "t0 t1 t2 2"  # long, not idle
        await until(lambda: not h.status("a").loaded, "unloading")
        assert await h.answer("a", "pid") != pid


async def test_zero_means_never(tmp_path: Path) -> None:
    async with harness(tmp_path, idle_unload_s=0) as h:
        await h.answer("a", "tokens:1")
        await asyncio.sleep(0.3)
        assert h.status("a").loaded


async def test_a_request_while_its_model_is_being_unloaded_loads_it_again(tmp_path: Path) -> None:
    async with harness(tmp_path, idle_unload_s=0.2) as h:
        pid = await h.answer("a", "close hang:0.4")
        await until(lambda: not h.status("a").loaded, "unloading")
        assert await h.answer("a", "runs") == "1"
        assert pid == ""
        assert len(h.loads("a")) == 2


@pytest.mark.parametrize("command", ["hang", "hang-in-c", "stop-self", "kill:11"])
async def test_a_worker_that_does_not_unload_is_ended(tmp_path: Path, command: str) -> None:
    async with harness(tmp_path, idle_unload_s=0.1, abort_grace_s=0.2) as h:
        await h.answer("a", f"close {command}")
        await until(lambda: not h.status("a").loaded, "unloading")
        assert await h.answer("a", "runs") == "1"


async def test_descriptors_and_processes_stay_level_over_many_loads(tmp_path: Path) -> None:
    # The harness compares both before and after.
    async with harness(tmp_path, cpu=("a", "b"), memory_mb=MB, available_mb=150) as h:
        for _ in range(50):
            await h.answer("a", "tokens:1")
            await h.answer("b", "tokens:1")
        assert len(h.loads("a")) == len(h.loads("b")) == 50

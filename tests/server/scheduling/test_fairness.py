"""Whose job is served when, with real workers: bounds, turns among clients, swaps of models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backends.protocol import Delta, Finished
from server.errors import ServerBusy
from server.scheduling import Run
from tests.server.workers.harness import Harness, first, harness


async def order_of(h: Harness, jobs: list[tuple[str, str]]) -> list[str]:
    """Submit (model, client) jobs behind a busy one; return the clients in the order they were served."""
    served: list[str] = []

    async def read(run: Run, client: str) -> None:
        async with run:
            await first(run, Finished)
            served.append(client)

    model = jobs[0][0]
    async with h.submit(h_loaded(h) or model, "endless", client="first") as busy:
        await first(busy, Delta)
        readers = [read(h.submit(name, "tokens:1", client=client), client) for name, client in jobs]
        tasks = [asyncio.ensure_future(reader) for reader in readers]
    await asyncio.gather(*tasks)
    return served


def h_loaded(h: Harness) -> str | None:
    return next((name for name in h.entries if h.status(name).loaded), None)


async def test_thirty_requests_of_one_client_do_not_starve_a_single_one(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        served = await order_of(h, [*[("a", "greedy")] * 30, ("a", "modest")])
    assert served.index("modest") == 1
    assert len(served) == 31


async def test_a_swap_waits_for_the_loaded_model_but_not_for_ever(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=(), npu=("a", "b")) as h:
        await h.answer("a", "tokens:1")
        served = await order_of(h, [("b", "swap"), *[("a", f"{number}") for number in range(8)]])
    assert served == ["0", "1", "2", "3", "swap", "4", "5", "6", "7"]


async def test_loaded_models_share_the_npu_in_order(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=(), npu=("a", "b")) as h:
        for name in "ab":
            await h.answer(name, "tokens:1")
        served = await order_of(h, [("b", "0"), ("a", "1"), ("b", "2"), ("a", "3")])
    assert served == ["0", "1", "2", "3"]


async def test_a_full_queue_refuses_and_says_when_to_come_back(tmp_path: Path) -> None:
    async with harness(tmp_path, queue_size=2) as h:
        async with h.submit("a", "endless") as busy:
            await first(busy, Delta)
            waiting = [h.submit("a", "tokens:1") for _ in range(2)]
            with pytest.raises(ServerBusy, match="2 requests waiting") as full:
                h.submit("a", "tokens:1")
            assert 1 <= full.value.retry_after_s <= 60
            async with waiting[0]:
                pass
            waiting[0] = h.submit("a", "tokens:1")  # who leaves makes room
        for run in waiting:
            async with run:
                await first(run, Finished)


async def test_one_client_may_not_fill_the_queue(tmp_path: Path) -> None:
    async with harness(tmp_path, queue_per_client=2) as h, h.submit("a", "endless") as busy:
        await first(busy, Delta)
        async with h.submit("a", "tokens:1"):
            with pytest.raises(ServerBusy, match="you have 2 requests waiting or under way"):
                h.submit("a", "tokens:1")
            async with h.submit("a", "tokens:1", client="other"):
                pass


async def test_a_client_of_one_request_has_it_under_way_or_waiting(tmp_path: Path) -> None:
    async with harness(tmp_path, queue_per_client=1) as h:
        async with h.submit("a", "endless") as busy:
            await first(busy, Delta)
            with pytest.raises(ServerBusy, match="you have 1 "):
                h.submit("a", "tokens:1")
        # Left, though the worker has yet to say so.
        async with h.submit("a", "tokens:1") as run:
            with pytest.raises(ServerBusy):
                h.submit("a", "tokens:1")
            await first(run, Finished)
        assert await h.answer("a", "tokens:1") == "t0 "


async def test_fifty_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        answers = await asyncio.gather(
            *(h.answer("a", f"tokens:{number}", client=f"{number % 7}") for number in range(50))
        )
        for number, answer in enumerate(answers):
            assert answer == "".join(f"t{i} " for i in range(number))

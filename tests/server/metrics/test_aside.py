"""A call that hangs holds up nobody, and no second one is begun beside it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from server.metrics.aside import Aside


async def test_a_call_that_hangs_gives_nothing_until_it_is_over() -> None:
    over = threading.Event()
    begun: list[int] = []

    def hangs() -> int:
        begun.append(len(begun))
        assert over.wait(60)
        return begun[-1]

    aside = Aside(hangs, 0.05)
    assert await aside() is None
    assert await aside() is None
    assert begun == [0], "while one hangs no other is begun"
    over.set()
    async with asyncio.timeout(60):
        while (value := await aside()) is None:
            await asyncio.sleep(0.01)
    assert value >= 1, "what came too late is not shown as if it were new"


async def test_what_it_raises_is_raised() -> None:
    def fails() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Aside(fails, 60)()

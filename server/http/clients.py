"""Notices a client that leaves while work is done for it. The one place that knows how ASGI says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection. Nobody is left to answer; not a fault."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; cancel it at once when the client leaves. The request's body must have been read.

    Returns only after the cancelled work has cleaned up. Raises ClientGone, or what the work raises.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_departure(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""When the storm is over: every model answers rightly, and each key has all its places again, and no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack

from bench.soak.checks import Wrong, check_error, check_text
from bench.soak.clients import CHAT, HYBRID_TOKENS, Asked
from bench.soak.harm import numbers
from bench.soak.http import Exchange
from bench.soak.models import CPU_MODEL, LONG, NPU_MODELS, QUEUE_PER_CLIENT, answer, key, question
from bench.soak.place import Place

PATIENCE_S = 60.0


def _asks(place: Place, asked: Asked, *, stream: bool = False) -> Exchange:
    headers = {"authorization": f"Bearer {key(0)}"}
    return Exchange(place.port, "POST", CHAT, asked.body(stream=stream), headers)


async def all_answer(place: Place, known: Mapping[str, str]) -> None:
    """Raise Wrong unless each model answers as it should, at the first try."""
    prompt, expected = next(iter(known.items()))
    asked = [Asked(model, question(1), answer(model, 1)) for model in NPU_MODELS]
    for one in (*asked, Asked(CPU_MODEL, prompt, expected, HYBRID_TOKENS)):
        async with _asks(place, one) as exchange:
            head = await exchange.head()
            made = json.loads(await exchange.body())
        if head.status != 200:
            raise Wrong(f"{one.model} does not answer any more: {head.status} {made}")
        check_text(made["choices"][0]["message"]["content"], one.expected, whole=True)


async def idle(place: Place) -> None:
    """Wait until nothing waits or runs: requests that were left end at their next token. Raises Wrong."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            for name in ("rkserve_queue_length", "rkserve_requests_running"):
                while sum((await numbers(place, name)).values()):
                    await asyncio.sleep(0.1)  # another process: no event of it comes here
    except TimeoutError:
        raise Wrong(f"requests that nobody waits for are not over after {PATIENCE_S:g} s") from None


async def places_are_free(place: Place) -> None:
    """Raise Wrong unless a key can have as many requests as it may, and the next one is refused."""
    await idle(place)
    async with AsyncExitStack() as stack:
        long = Asked(NPU_MODELS[0], LONG, "")
        asked = [
            await stack.enter_async_context(_asks(place, long, stream=True)) for _ in range(QUEUE_PER_CLIENT)
        ]
        # With the first text, or with the first comment for those that wait.
        heads = await asyncio.gather(*(exchange.head() for exchange in asked))
        for exchange, head in zip(asked, heads, strict=True):
            if head.status != 200:
                raise Wrong(f"a request within a key's limit is refused: {await exchange.body()!r}")
        async with _asks(place, long, stream=True) as exchange:
            head = await exchange.head()
            if head.status == 200:
                raise Wrong("a request over a key's limit is accepted")
            code = check_error(head.status, head.headers, json.loads(await exchange.body()))
            if code != "server_busy":
                raise Wrong(f"a request over a key's limit gets {code}")
    await idle(place)

"""What is done to the server: workers killed in every way. And what is watched: health, the queue."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from random import Random

import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.soak.checks import Tally, Wrong
from bench.soak.http import Exchange
from bench.soak.models import MODELS, QUEUE_SIZE
from bench.soak.place import Place

WATCH_S = 0.5
SECOND_KILL = 0.4  # how often, of all kills
# How long a new worker is looked for, and in what time from its start it is killed.
LOOKS, LOOK_S, LOAD_S = 100, 0.05, 1.0
# A busy machine may hold up the server and this program; the service's watchdog waits for so long.
WORST_HEALTH_S = 30.0
_WAYS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL, signal.SIGABRT)


async def kill_workers(place: Place, tally: Tally, every_s: float, until: float, seed: int) -> None:
    """Kill one of the workers every so often, and sometimes the one that takes its place while it loads."""
    random = Random(seed)
    while time.monotonic() + every_s < until:
        await asyncio.sleep(every_s)
        before = place.workers()
        if not before:
            continue
        _kill(random.choice(before), random.choice(_WAYS), tally)
        if random.random() < SECOND_KILL:
            for _ in range(LOOKS):
                await asyncio.sleep(LOOK_S)  # another process starts: no event of it comes here
                if fresh := set(place.workers()) - set(before):
                    await asyncio.sleep(random.uniform(0, LOAD_S))
                    _kill(fresh.pop(), signal.SIGKILL, tally)
                    break


async def change_models(place: Place, tally: Tally, every_s: float, until: float) -> None:
    """Change models.yaml every so often while the server runs."""
    while time.monotonic() + every_s < until:
        await asyncio.sleep(every_s)
        place.change_models(tally.reloads)
        tally.reloads += 1


def _kill(worker: psutil.Process, way: signal.Signals, tally: Tally) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        worker.send_signal(way)
        tally.kills[way.name] += 1


async def watch(place: Place, tally: Tally, until: float) -> None:
    """Ask for /health and the queue's length. Raises Wrong if it is slow, or the queue too long."""
    while time.monotonic() < until:
        begun = time.monotonic()
        async with Exchange(place.port, "GET", "/health", b"", {}) as exchange:
            if (await exchange.head()).status != 200:
                raise Wrong("/health is not 200")
        took = time.monotonic() - begun
        tally.health_s.append(took)
        if took > WORST_HEALTH_S:
            raise Wrong(f"/health took {took:.1f} s")
        waiting = sum((await numbers(place, "rkserve_queue_length")).values())
        tally.longest_queue = max(tally.longest_queue, int(waiting))
        # A request whose worker ended before it began waits again, beyond the limit: one a worker.
        if waiting > QUEUE_SIZE + len(MODELS):
            raise Wrong(f"{waiting:.0f} requests wait, and {QUEUE_SIZE} may")
        await asyncio.sleep(WATCH_S)


async def numbers(place: Place, name: str) -> dict[str, float]:
    """Return the samples of one name that /metrics shows, by the values of their labels."""
    async with Exchange(place.port, "GET", "/metrics", b"", {}) as exchange:
        await exchange.head()
        text = (await exchange.body()).decode()
    return {
        " ".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }

"""Runs the soak and prints its figures: `python -m bench.soak [--seconds 600] [--clients 200]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.soak.after import all_answer, places_are_free
from bench.soak.checks import LOST, Tally, Wrong
from bench.soak.clients import Client, hybrid_answers
from bench.soak.harm import change_models, kill_workers, numbers, watch
from bench.soak.levels import Level, level
from bench.soak.place import Place, place

FULL_DISK = "/dev/full"  # every write to it fails as on a full disk
# What an allocator may keep of a storm that it had not needed in the first one.
LEVEL_MB = 8.0
# Of the thread pool, which grows to its full size when it happens to be needed.
MORE_THREADS = 8


async def storm(place: Place, known: Mapping[str, str], options: argparse.Namespace, seconds: float) -> Tally:
    """Let all clients loose for so long. Raises Wrong at the first thing that is."""
    tally = Tally()
    until = time.monotonic() + seconds
    clients = [Client(n, place.port, tally, known, options.seed) for n in range(options.clients)]
    work: list[Coroutine[Any, Any, None]] = [client.live(until) for client in clients]
    work.append(kill_workers(place, tally, options.kill_every, until, options.seed))
    work.append(change_models(place, tally, 0.7 * options.kill_every, until))
    work.append(watch(place, tally, until))
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except* Wrong as wrong:
        raise Wrong("; ".join(str(one) for one in wrong.exceptions)) from None
    return tally


async def quiet(place: Place, known: Mapping[str, str]) -> Level:
    """Return what the server holds after all its models have answered."""
    await places_are_free(place)
    await all_answer(place, known)
    return await level(place)


async def soak(place: Place, options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, measure, storm, measure again. Returns the figures; raises Wrong."""
    known = await hybrid_answers(place.port)
    await storm(place, known, options, options.warm_up)
    before = await quiet(place, known)
    tally = await storm(place, known, options, options.seconds)
    lost = sum((await numbers(place, "rkserve_workers_lost_total")).values())
    after = await quiet(place, known)
    figures = report(tally, before, after, lost, options)
    print(json.dumps(figures, indent=1))
    judge(tally, before, after, options)
    return figures


def report(
    tally: Tally, before: Level, after: Level, lost: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what happened, as numbers."""
    first = sorted(tally.first_s)
    health = sorted(tally.health_s)
    requests = tally.outcomes.total()
    return {
        "clients": options.clients,
        "seconds": options.seconds,
        "requests": requests,
        "requests_per_second": round(requests / options.seconds, 1),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "refusals": dict(tally.refusals),
        "kills": dict(tally.kills),
        "workers_lost_since_start": int(lost),
        "reloads_of_models_yaml": tally.reloads,
        "longest_queue": tally.longest_queue,
        "first_text_median_s": _share(first, 0.5),
        "first_text_95_s": _share(first, 0.95),
        "health_median_ms": round(1000 * _share(health, 0.5), 1),
        "health_worst_ms": round(1000 * health[-1], 1),
        "before": asdict(before),
        "after": asdict(after),
    }


def judge(tally: Tally, before: Level, after: Level, options: argparse.Namespace) -> None:
    """Raise Wrong for a leak, and for a storm that was none."""
    if after.memory_mb - before.memory_mb > LEVEL_MB:
        raise Wrong(f"the server's memory grew from {before.memory_mb:.1f} to {after.memory_mb:.1f} MB")
    if after.files > before.files:
        raise Wrong(f"the server's open files grew from {before.files} to {after.files}")
    if after.threads > before.threads + MORE_THREADS:
        raise Wrong(f"the server's threads grew from {before.threads} to {after.threads}")
    # Each kill ends one answer under way, or a load and with it those who wait for it.
    crashes = sum(
        n for what, n in tally.outcomes.items() if any(c in what for c in LOST if c != "load_failed")
    )
    if crashes > tally.kills.total():
        raise Wrong(f"{tally.kills.total()} kills have cost {crashes} answers")
    for wanted in ("stream: answered", "whole: answered", "leave: left"):
        if not tally.outcomes[wanted]:
            raise Wrong(f"nothing was {wanted}: no storm")
    if options.clients > 100 and not tally.refusals["server_busy"]:
        raise Wrong("nobody was refused: no storm")


def _share(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--warm-up", type=float, default=60, help="seconds before the first measurement")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--kill-every", type=float, default=20, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", default=FULL_DISK, help="the server's log; by default on a full disk")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rkserve-soak-") as directory:
        try:
            with place(Path(directory), options.log) as running:
                figures = asyncio.run(soak(running, options))
        except (Wrong, RuntimeError) as wrong:
            print(f"soak: FAILED: {wrong}", file=sys.stderr)
            return 1
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())

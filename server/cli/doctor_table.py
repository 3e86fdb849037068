"""The table of the doctor: a row for each finding, its cure and its page under what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from server.cli.console import results
from server.doctor.finding import Finding, Status


@dataclass(frozen=True)
class _Shown:
    """A status in a word, since not everybody sees colours and not every terminal has them."""

    word: str
    style: str


_STATUS: Mapping[Status, _Shown] = {
    "ok": _Shown("ok", "green"),
    "advice": _Shown("advice", "yellow"),
    "bad": _Shown("BAD", "bold red"),
}


def print_findings(findings: Sequence[Finding]) -> None:
    """Print all of them, in their order. A name stands at the first of its rows only."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("CHECK", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("WHAT IS SO, AND WHAT MENDS IT", overflow="fold")
    last = ""
    for finding in findings:
        shown = _STATUS[finding.status]
        name = finding.check if finding.check != last else ""
        last = finding.check
        table.add_row(Text(name), Text(shown.word, style=shown.style), Text(finding.why))
        if finding.mend is not None:
            table.add_row("", "", Text(f"-> {finding.mend}", style="bold"))
        if finding.see is not None:
            table.add_row("", "", Text(f"   {finding.see.link}", style="dim"))
    results().print(table)

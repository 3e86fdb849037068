"""The table of the doctor: a row for each finding, its cure and its page under what is wrong.

Cures are never wrapped by us but by the terminal alone, which joins them again when they are copied.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich.text import Text

from server.cli.console import results
from server.doctor.finding import Finding, Status

# A word each, since not everybody sees colours and not every terminal has them.
_STATUS: Mapping[Status, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "advice": ("advice", "yellow"),
    "bad": ("BAD", "bold red"),
}
_LEAST_WIDTH = 30
_INDENT = "    "


def print_findings(findings: Sequence[Finding]) -> None:
    """Print all of them, in their order. A name stands at the first of its rows only."""
    console = results()
    names = max((len(finding.check) for finding in findings), default=0)
    words = max(len(word) for word, _ in _STATUS.values())
    room = max(_LEAST_WIDTH, console.width - names - words - 4)
    last = None
    for finding in findings:
        word, style = _STATUS[finding.status]
        first, *more = textwrap.wrap(finding.why, room, break_on_hyphens=False) or [""]
        name = finding.check if finding.check != last else ""
        last = finding.check
        head = Text.assemble(f"{name:{names}}  ", (f"{word:{words}}", style), f"  {first}")
        head.rstrip()
        console.print(head, soft_wrap=True)
        for line in more:
            console.print(Text(" " * (names + words + 4) + line.rstrip()), soft_wrap=True)
        if finding.mend is not None:
            console.print(Text(f"{_INDENT}-> {finding.mend}", style="bold"), soft_wrap=True)
        if finding.see is not None:
            console.print(Text(f"{_INDENT}   {finding.see.link}", style="dim"), soft_wrap=True)

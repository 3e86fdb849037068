"""The table of what `rkserve convert rknn` has built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from server.cli.console import results

if TYPE_CHECKING:
    from convert.rknn.build import Report


def print_builds(report: Report) -> None:
    """Print a line for each segment and one for all, and how answers compare if they were compared."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("SEGMENT", "MB", "COSINE", "LARGEST HIDDEN", ""):
        table.add_column(header, justify="left" if header in ("SEGMENT", "") else "right", no_wrap=True)
    for row in report.rows:
        largest = "" if row.max_hidden is None else f"{row.max_hidden:,.1f}"
        state = "kept from before" if row.was_kept else "built"
        table.add_row(str(row.segment), f"{row.size_bytes / 1e6:.1f}", f"{row.cosine:.7f}", largest, state)
    known = [row.max_hidden for row in report.rows if row.max_hidden is not None]
    table.add_row(
        "all",
        f"{sum(row.size_bytes for row in report.rows) / 1e6:.1f}",
        f"{min(row.cosine for row in report.rows):.7f}",
        f"{max(known):,.1f}" if known else "",
        style="bold",
    )
    console = results()
    console.print(table)
    if report.continued is not None:
        same, of = report.continued.same, report.continued.of
        console.print(f"greedy tokens the same in simulator and onnxruntime: {same} of {of}")

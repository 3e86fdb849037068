"""Progress where there is no terminal: plain lines at intervals, and always the end."""

from __future__ import annotations

import pytest

from server.cli.progress import progress


def test_lines_come_at_intervals_and_the_end_always(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 1.0, 4.9, 5.1, 5.2, 6.0])
    with progress("pulling x", clock=lambda: next(now)) as report:
        report(None, "fetching")
        report(0.1, "a")
        report(0.2, "b")
        report(0.3, "c")
        report(0.4, "d")
        report(1.0, "written")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "rkserve: pulling x: fetching",
        "rkserve: pulling x: 30% c",
        "rkserve: pulling x: 100% written",
    ]

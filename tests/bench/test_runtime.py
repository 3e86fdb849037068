"""The bench of the rkllm backend: its subjects hand on what the library plays, or figures mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import runtime


@pytest.mark.timeout(240)
def test_every_subject_relays_what_the_library_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "figures.json"
    runtime.main(["--tokens", "40", "--rounds", "1", "--first-rounds", "1", "--json", str(kept)])
    assert "rkserve" in capsys.readouterr().out
    report = json.loads(kept.read_text())
    rows = {(row["load"], row["subject"]): row for row in report["rows"]}
    assert {subject for _, subject in rows} == set(runtime.SUBJECTS)
    for (_, subject), row in rows.items():
        if subject != runtime.POLLING:  # whose design loses text
            assert row["spoilt"] == "0 of 1", row
            assert row["raw tok/s"] > 0 and row["client tok/s"] > 0
    lost = next(figure for figure in report["figures"] if "lost" in figure["what"])
    assert lost["value"] == 0

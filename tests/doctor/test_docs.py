"""The page on what only a board can show names every probe, and every key that a probe can ask for."""

from __future__ import annotations

from pathlib import Path

from backends.probing import RKLLM_PROBES
from server.registry.blocks import RkllmBlock
from tests.doctor.test_probes import LIBRARIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "on-a-board.md"


def test_the_page_names_all_probes_and_keys() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert rows == [probe.name for probe in RKLLM_PROBES]
    keys = {key for _, _, settings in LIBRARIES.values() for key in settings}
    assert {key.removeprefix("rkllm.") for key in keys} <= set(RkllmBlock.model_fields)
    assert not [key for key in keys if f"`{key}`" not in text]

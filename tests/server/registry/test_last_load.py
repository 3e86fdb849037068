"""What a load has told is kept beside the model's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.spec import ModelInfo
from server.registry.last_load import LAST_LOAD_FILE, LastLoad, keep_last_load, read_last_load
from tests.server.examples import example_entry

ENTRY = example_entry(backend="rkllm", folder=None, file="/elsewhere/m.rkllm")
INFO = ModelInfo(
    runtime="librkllmrt 1.3.1",
    context_length=4096,
    vocab_size=0,
    memory_mb=10,
    warnings=["w"],
    details={"npu_driver": "0.9.8"},
)


def test_it_is_read_again(tmp_path: Path) -> None:
    assert read_last_load(ENTRY, tmp_path) is None
    keep_last_load(ENTRY, tmp_path, INFO)
    keep_last_load(ENTRY, tmp_path, INFO)
    assert read_last_load(ENTRY, tmp_path) == LastLoad("librkllmrt 1.3.1", ["w"], {"npu_driver": "0.9.8"})
    assert [path.name for path in (tmp_path / "example").iterdir()] == [LAST_LOAD_FILE]


@pytest.mark.parametrize("content", ["", "[]", '{"details": {}}', "\x00"])
def test_a_file_that_is_something_else_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / LAST_LOAD_FILE).write_text(content)
    assert read_last_load(ENTRY, tmp_path) is None


@pytest.mark.parametrize("folder", [".", "../other"])
def test_what_was_removed_during_its_load_stays_away(folder: str, tmp_path: Path) -> None:
    """An empty directory of that name would be refused by a pull of a package."""
    keep_last_load(example_entry(folder=folder), tmp_path, INFO)
    assert list(tmp_path.iterdir()) == []

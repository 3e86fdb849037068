"""What is known of a model's files counts for as long as they are the same, and for each of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.errors import ModelCorrupt
from server.registry import Registry
from server.settings import Settings
from server.startup_log import log_problems
from server.store.soundness import check_known, checked_now, keep_checked, known_damage
from server.templates import Templates
from tests.server.examples import example_entry

RIGHT, WRONG = "a" * 64, "b" * 64


@pytest.mark.parametrize("name", ["model.rkllm", "tokenizer.json"])
def test_any_file_that_is_known_to_be_bad_keeps_a_model_from_loading(name: str, tmp_path: Path) -> None:
    entry = example_entry(backend="rkllm", folder=None, file="model.rkllm")
    directory = tmp_path / entry.id
    directory.mkdir()
    for file in ("model.rkllm", "tokenizer.json"):
        (directory / file).write_bytes(b"content")
    check_known(entry, tmp_path)
    keep_checked(entry, tmp_path, {name: checked_now(directory / name, WRONG, None)})
    check_known(entry, tmp_path)  # nobody knows what it should be
    keep_checked(entry, tmp_path, {name: checked_now(directory / name, WRONG, RIGHT)})
    with pytest.raises(ModelCorrupt, match=f"{name} is damaged: its sha256 is {WRONG}, and should"):
        check_known(entry, tmp_path)
    os.utime(directory / name, (1, 1))
    assert known_damage(entry, tmp_path) is None


def test_the_hash_that_the_entry_names_now_is_what_counts(tmp_path: Path) -> None:
    """Somebody writes the hash into models.yaml after the file was read."""
    entry = example_entry(backend="rkllm", folder=None, file="model.rkllm")
    (tmp_path / entry.id).mkdir()
    path = tmp_path / entry.id / "model.rkllm"
    path.write_bytes(b"content")
    keep_checked(entry, tmp_path, {"model.rkllm": checked_now(path, RIGHT, None)})
    assert known_damage(entry.model_copy(update={"sha256": RIGHT}), tmp_path) is None
    assert known_damage(entry.model_copy(update={"sha256": WRONG}), tmp_path) is not None


def test_a_record_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    entry = example_entry()
    (tmp_path / entry.id).mkdir()
    (tmp_path / entry.id / ".record.json").write_text('{"checked": {"x": 5}}')
    assert known_damage(entry, tmp_path) is None


def test_it_is_logged_when_the_server_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry = example_entry(backend="rkllm", folder=None, file="model.rkllm")
    path = tmp_path / entry.id / "model.rkllm"
    path.parent.mkdir()
    path.write_bytes(b"content")
    keep_checked(entry, tmp_path, {"model.rkllm": checked_now(path, WRONG, RIGHT)})
    settings = Settings(models_dir=tmp_path, api_keys_file=None)
    log_problems(settings, Registry({entry.id: entry}, tmp_path), Templates(tmp_path))
    assert any(message.startswith(f"example is not served. {path} is damaged") for message in caplog.messages)

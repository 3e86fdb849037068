"""What goes with the weights of a checkpoint: licence, notice, chat template, end tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from convert.hf import convert_hf
from tests.convert.checkpoints import write_checkpoint
from tests.convert.reference import read_meta
from tests.convert.refusal import refusal
from tests.oracle.architectures import models
from tests.tiny import CHAT_TEMPLATE, EOS_TOKEN_ID, tiny_tokenizer


def test_papers_go_with_the_weights(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "qwen3", models()["qwen3"])
    folder = convert_hf(checkpoint, tmp_path / "folder", lengths=(1, 8))
    meta = read_meta(folder)
    assert (meta.name, meta.architecture) == ("qwen3", "qwen3")
    assert meta.eos_token_ids == [EOS_TOKEN_ID]
    assert (folder / "tokenizer.json").read_text() == tiny_tokenizer()
    assert (folder / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert meta.license.id == "Apache-2.0"
    assert "weights of qwen3 were changed" in meta.license.notice
    assert meta.license.text is not None and meta.license.notice_file is not None
    assert (folder / meta.license.text.file).read_text() == "The licence's text.\n"
    assert (folder / meta.license.notice_file.file).read_text() == "The notice.\n"
    assert meta.source["format"] == "safetensors"
    assert len(meta.source["sha256 of model.safetensors"]) == 64
    assert all(segment.max_hidden is not None and segment.max_hidden > 0 for segment in meta.segments)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("chat_template.jinja", b"{{ '\xff' }}", "chat_template.jinja cannot be read"),
        ("tokenizer_config.json", b'{"chat_template": "\\ud800"}', "chat_template is no text"),
    ],
)
def test_templates_that_are_no_text(file: str, content: bytes, complaint: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", models()["llama"])
    (directory / file).write_bytes(content)
    assert complaint in refusal(directory)


@pytest.mark.parametrize(
    "card",
    ["date: 2026-13-45", f"size: {'9' * 5000}", "x: " + "[" * 20000, "license: [", "\xff", None],
    ids=["a date", "a number", "brackets", "no end", "no UTF-8", "a pipe"],
)
def test_a_card_may_say_anything(card: str | None, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", models()["llama"])
    (directory / "README.md").unlink(missing_ok=True)
    if card is None:
        os.mkfifo(directory / "README.md")
    else:
        (directory / "README.md").write_bytes(f"---\n{card}\n---\n".encode("latin-1"))
    assert read_meta(convert_hf(directory, tmp_path / "out")).license.id == "NOASSERTION"


def test_end_tokens_come_from_three_places(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", models()["llama"])
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2, 7]}))
    assert read_meta(convert_hf(directory, tmp_path / "a")).eos_token_ids == [5, 2, 7]
    (directory / "generation_config.json").unlink()
    write_checkpoint(directory, models()["llama"], eos_token_id=None)
    assert "names no token as the end of an answer" in refusal(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    folder = convert_hf(directory, tmp_path / "b")
    assert read_meta(folder).eos_token_ids == [2]
    assert read_meta(folder).chat_template is None

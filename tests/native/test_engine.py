"""Every architecture answers with the native kernels what transformers answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.hybrid.kernels import Kernels
from convert.hf import convert_hf
from tests.architectures.test_oracle import CHUNK, NAMES, Engine
from tests.convert.checkpoints import write_checkpoint
from tests.oracle.architectures import ANSWER_TOKENS, models


@pytest.mark.parametrize("native", [2], indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_conversations_in_turn(name: str, native: Kernels, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / name, models()[name])
    convert_hf(checkpoint, tmp_path / "folder", lengths=(1, 8, CHUNK))
    engine = Engine(tmp_path / "folder", kernels=native)
    conversations = models()[name].conversations
    first = len(conversations["first"].prompt)
    cached = {}
    for key in ("first", "short", "second_turn", "edit_in_answer", "first"):
        cached[key] = engine.answer(conversations[key].prompt, conversations[key])
    assert cached["second_turn"] == first + ANSWER_TOKENS - 1

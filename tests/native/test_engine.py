"""Every architecture answers with the native kernels what transformers answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.kernels import NUMPY, Kernels
from backends.hybrid.rknn import RknnExecutor
from convert.hf import convert_hf
from tests.architectures.engine import CHUNK, Engine
from tests.convert.checkpoints import write_checkpoint
from tests.oracle.architectures import ANSWER_TOKENS, models
from tests.standin.rknn.build import build
from tests.standin.rknn.model_file import add_rknn_builds
from tests.tiny import tiny_folder


@pytest.mark.parametrize("native", [2], indirect=True)
@pytest.mark.parametrize("name", sorted(models()))
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


@pytest.mark.parametrize("align", ["1", "64"])
@pytest.mark.parametrize("native", [1], indirect=True)
def test_numbers_go_to_the_npu_and_back_as_with_numpy(
    align: str, native: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RKNN_STANDIN_ALIGN", align)
    folder = read_folder(add_rknn_builds(tiny_folder(tmp_path / "tiny")), executor="rknn")
    found = []
    for kernels in (native, NUMPY):
        executor = RknnExecutor(folder, build(), lambda done, what: None, kernels=kernels)
        forward = Forward(folder, executor)
        cache = forward.new_cache()
        forward.run(np.arange(3, 14, dtype=np.int32), cache, want_logits=False)
        logits = forward.run(np.array([5], np.int32), cache, want_logits=True)
        assert logits is not None
        found.append(logits.copy())
        executor.close()
    assert np.array_equal(found[0], found[1])

"""A GGUF file of every architecture becomes the folder that its checkpoint becomes, and answers the same.

That the files mean this to llama.cpp too is shown by tests/oracle/check_gguf.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.hybrid.meta import Meta
from convert.gguf import convert_gguf
from convert.hf import convert_hf
from tests.architectures.engine import CHUNK, Engine
from tests.convert.checkpoints import write_checkpoint
from tests.convert.reference import read_meta
from tests.convert.test_gguf import stored_matrices
from tests.oracle.architectures import models
from tests.oracle.gguf_files import NAMES, write_gguf

Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Converts the file of a model of the oracle once."""
    directory = tmp_path_factory.mktemp("gguf")

    def folder(name: str) -> Path:
        out = directory / "folders" / name
        if not out.exists():
            write_gguf(directory / f"{name}.gguf", models()[name])
            convert_gguf(directory / f"{name}.gguf", out, lengths=(1, 8, CHUNK))
        return out

    return folder


@pytest.mark.parametrize("name", NAMES)
def test_it_answers_what_transformers_answers(name: str, folders: Folders) -> None:
    engine = Engine(folders(name))
    for key in ("first", "edit_in_answer", "short"):
        conversation = models()[name].conversations[key]
        engine.answer(conversation.prompt, conversation)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_folder_that_the_checkpoint_becomes(name: str, folders: Folders, tmp_path: Path) -> None:
    """The same description, what was measured included, and the same numbers in every graph, bit for bit."""
    checkpoint = write_checkpoint(tmp_path / "checkpoint", models()[name])
    shutil.copy(folders(name) / "tokenizer.json", checkpoint)  # the text that is measured is to be the same
    other = convert_hf(checkpoint, tmp_path / "folder", lengths=(1, 8, CHUNK))
    mine, theirs = description(read_meta(folders(name))), description(read_meta(other))
    if name.startswith("gemma3"):  # whose scale of scores no file can say: see gguf_files
        for meta in (mine, theirs):
            for kind in meta["attention"].values():
                kind["scale"] = None
    assert mine == theirs
    assert largest(folders(name)) == pytest.approx(largest(other), rel=1e-4)
    found, expected = stored_matrices(folders(name)), stored_matrices(other)
    assert found.keys() == expected.keys()
    for key, matrix in expected.items():
        np.testing.assert_array_equal(found[key], matrix, err_msg=key)
    np.testing.assert_array_equal(np.load(folders(name) / "embedding.npy"), np.load(other / "embedding.npy"))
    for path in sorted(other.glob("layer_*_norm.npy")):
        if not (name.startswith("gemma3") and "q_norm" in path.name):
            np.testing.assert_array_equal(np.load(folders(name) / path.name), np.load(path))


def description(meta: Meta) -> dict[str, Any]:
    """What a folder says of the model, apart from its name, papers, hashes and largest values."""
    plain: dict[str, Any] = msgspec.to_builtins(meta)
    for key in ("name", "chat_template", "license", "source"):
        del plain[key]
    for layer in plain["layers"]:
        for norm in ("q_norm", "k_norm"):
            layer[norm] = layer[norm] and layer[norm]["file"]
    for segment in plain["segments"]:
        del segment["builds"], segment["max_hidden"]
    return plain


def largest(folder: Path) -> list[float | None]:
    """The largest value of the stream in each segment, as it was measured."""
    return [segment.max_hidden for segment in read_meta(folder).segments]


def test_a_stream_that_float16_cannot_hold_is_divided(folders: Folders) -> None:
    meta = read_meta(folders("gemma3_large"))
    assert meta.residual_scale > 1
    assert all(0 < (segment.max_hidden or 0) <= 65_504 / 4 for segment in meta.segments)

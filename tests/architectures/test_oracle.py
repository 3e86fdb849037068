"""Every architecture, converted and run by the engine, answers what transformers answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from convert.architectures import ARCHITECTURES
from convert.hf import convert_hf
from convert.hf_config import Config
from convert.writer import write_folder
from tests.architectures.engine import CHUNK, TOLERANCE, Engine, papers
from tests.convert.checkpoints import write_checkpoint
from tests.oracle.architectures import ANSWER_TOKENS, models

NAMES = sorted(models())


Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Converts a model of the oracle once."""
    directory = tmp_path_factory.mktemp("architectures")

    def folder(name: str) -> Path:
        out = directory / "folders" / name
        if not out.exists():
            checkpoint = write_checkpoint(directory / name, models()[name], parts=1 + len(name) % 3)
            convert_hf(checkpoint, out, lengths=(1, 8, CHUNK))
        return out

    return folder


@pytest.mark.parametrize("name", NAMES)
def test_conversations_in_turn(name: str, folders: Folders) -> None:
    """A chat, another, the chat's second turn, an edit in each part of its history, and the first again."""
    engine = Engine(folders(name))
    conversations = models()[name].conversations
    first = len(conversations["first"].prompt)
    cached = {}
    for key in ("first", "short", "second_turn", "edit_in_answer", "edit_in_prompt", "first"):
        cached[key] = engine.answer(conversations[key].prompt, conversations[key])
    assert cached["second_turn"] == first + ANSWER_TOKENS - 1
    whole = all(rows.reach is None for rows in engine.forward.new_cache()._shapes)
    # With windows or convolutions the history goes on from the snapshot at the first prompt's end.
    assert cached["edit_in_answer"] == (145 if whole else first)
    assert cached["edit_in_prompt"] == (60 if whole else 0)
    assert cached["first"] == first - 1


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_may_be_cut_anyhow(name: str, folders: Folders) -> None:
    engine = Engine(folders(name))
    expected = models()[name].conversations["first"]
    for sizes in ((1, 2, 31, 5), (7,) * 17, (1,) * 40):
        logits = engine.logits(expected.prompt, engine.forward.new_cache(), sizes)
        np.testing.assert_allclose(logits, expected.logits[0], atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_only_fill_up_a_fixed_length_change_nothing(name: str, folders: Folders) -> None:
    """Calls of 1, 8 and 32 tokens only, unused rows full of rubbish: no state may come from those."""
    engine = Engine(folders(name), lengths=(1, 8, CHUNK))
    conversations = models()[name].conversations
    for key in ("first", "second_turn", "edit_in_answer"):
        engine.answer(conversations[key].prompt, conversations[key])
    expected = conversations["first"]
    for sizes in ((5, 3, 30), (31, 1, 2, 20)):
        logits = engine.logits(expected.prompt, engine.forward.new_cache(), sizes)
        np.testing.assert_allclose(logits, expected.logits[0], atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_keys_and_values_in_float16(name: str, folders: Folders) -> None:
    """Half the memory, an error of float16's size: the answer holds where its lead is larger."""
    engine = Engine(folders(name), kv_fp16=True)
    expected = models()[name].conversations["first"]
    logits = engine.logits(expected.prompt, engine.forward.new_cache())
    wanted = np.array(expected.logits[0])
    assert np.abs(logits - wanted).max() < 0.02 * np.abs(wanted).max()
    first, second = np.sort(wanted)[[-1, -2]]
    if first - second > 0.1:
        assert int(logits.argmax()) == expected.answer[0]


def test_a_gate_for_each_element_does_what_one_for_each_head_does(tmp_path: Path) -> None:
    """LFM3 with each row of its gates' projections repeated for all of a head's elements answers the same."""
    oracle = models()["lfm3"]
    config = Config(oracle.config)
    heads = ARCHITECTURES["lfm3"](config)
    kinds = {name: msgspec.structs.replace(kind, gate="element") for name, kind in heads.attention.items()}
    model = dataclasses.replace(heads, attention=kinds)
    weights = {
        name: np.repeat(weight, model.head_dim, axis=0) if "g_proj" in name else weight
        for name, weight in oracle.weights().items()
    }
    write_folder(tmp_path, model, weights.__getitem__, papers("gated"))
    expected = oracle.conversations["first"]
    Engine(tmp_path).answer(expected.prompt, expected)

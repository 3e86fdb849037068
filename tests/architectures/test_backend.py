"""Whole answers of a model with windows, gates and conv layers, and what its caches keep of a history."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from backends.engine import Backend
from backends.spec import HybridOptions
from convert.hf import convert_hf
from tests.backends.hybrid.asking import answer, open_model
from tests.convert.checkpoints import write_checkpoint
from tests.oracle.architectures import models
from tests.tiny import tiny_config

SYSTEM = "system you are the helpful board " * 40
QUESTION = "user what is the capital of this sentence "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LFM3 with the vocabulary of the tiny tokenizer."""
    vocab_size = tiny_config().vocab_size
    model = models()["lfm3"]
    table = "model.embed_tokens.weight"
    model = dataclasses.replace(
        model,
        config=model.config | {"vocab_size": vocab_size, "max_position_embeddings": 2048},
        shapes=model.shapes | {table: (vocab_size, model.shapes[table][1])},
    )
    directory = tmp_path_factory.mktemp("lfm3")
    return convert_hf(write_checkpoint(directory / "checkpoint", model), directory / "folder")


def ask(model: Backend, prompt: str) -> tuple[str, int, int]:
    """The answer, how many tokens the prompt has, and how many of them were cached."""
    text, _, usage = answer(model, prompt, max_tokens=24)
    return text, usage.prompt_tokens, usage.cached_tokens


def test_a_history_that_changes_goes_on_from_a_snapshot_and_says_the_same(folder: Path) -> None:
    model = open_model(folder, context_length=2048)
    first = SYSTEM + QUESTION
    text, length, cached = ask(model, first)
    assert cached == 0
    followed = f"{first}{text} user and what is the number of it "
    _, longer, cached = ask(model, followed)
    assert length <= cached < longer
    edited = f"{first}the answer is one word user and what is it "
    said, _, cached = ask(model, edited)
    assert length - 16 <= cached <= length  # a token or two may be spelled otherwise at the border
    anew, _, nothing = ask(open_model(folder, context_length=2048), edited)
    assert (said, nothing) == (anew, 0)


def test_without_room_for_snapshots_a_changed_history_is_computed_anew(folder: Path) -> None:
    model = open_model(folder, context_length=2048, hybrid=HybridOptions(cache_mb=0))
    texts = [ask(model, SYSTEM + QUESTION) for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0][2] == 0


def test_a_chat_in_float16_says_something_in_half_the_memory(folder: Path) -> None:
    half = open_model(folder, context_length=2048, hybrid=HybridOptions(kv_dtype="fp16"))
    text, _, _ = ask(half, QUESTION)
    again, _, cached = ask(half, QUESTION)
    assert text == again and cached > 0

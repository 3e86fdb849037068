"""Whole answers of a small random model: where and why they end, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.base import BackendError, Sampling, Span
from backends.engine import Backend
from backends.hybrid.forward import Forward
from backends.tokenizer import PromptTokenizer
from tests.backends.hybrid.asking import PROMPT, Recorder, answer, open_model, reference_answer
from tests.tiny import EOS_TOKEN_ID, tiny_folder


@pytest.mark.parametrize("at", [0, 32, 64])
def test_cancelled_in_prefill(model: Backend, folder: Path, at: int) -> None:
    sink = Recorder()
    sink.cancel_at_prefill = at
    text, reason, usage = answer(model, "a" * 100, sink)
    assert (text, reason, usage.completion_tokens) == ("", "cancelled", 0)
    assert sink.prefills[-1] == (at, 100)
    text, _, usage = answer(model, "a" * 100)
    assert usage.cached_tokens == at
    assert text == answer(open_model(folder), "a" * 100)[0]


def test_cancelled_in_decode_ends_at_the_next_token(model: Backend) -> None:
    whole = answer(model, PROMPT, max_tokens=200)[0]
    sink = Recorder()
    sink.cancel_after_tokens = 20
    text, reason, usage = answer(model, PROMPT, sink, max_tokens=200)
    assert reason == "cancelled"
    assert sink.tokens <= usage.completion_tokens <= sink.tokens + 1
    assert whole.startswith(text) and text != whole
    assert answer(model, PROMPT, max_tokens=200)[0] == whole


def test_a_run_that_fails_is_followed_by_a_right_one(model: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answer(model, PROMPT)[0]
    with monkeypatch.context() as patch:
        calls = iter(range(100))
        original = Forward.run

        def run(self: Forward, *args: Any, **more: Any) -> Any:
            if next(calls) == 3:
                raise MemoryError
            return original(self, *args, **more)

        patch.setattr(Forward, "run", run)
        with pytest.raises(BackendError) as caught:
            answer(model, PROMPT + "again")
        assert caught.value.code == "insufficient_memory"
    assert answer(model, PROMPT)[0] == expected


def test_stop_strings_end_the_answer_and_stay_out(model: Backend, folder: Path) -> None:
    whole = answer(model, PROMPT, max_tokens=60)[0]
    at = next(
        i for i in range(5, len(whole)) if whole[i : i + 3].isascii() and whole.count(whole[i : i + 3]) == 1
    )
    stop = whole[at : at + 3]
    text, reason, usage = answer(model, PROMPT, max_tokens=60, stop=["never said", stop])
    assert (text, reason) == (whole[:at], "stop")
    assert 0 < usage.completion_tokens < 60
    ours = open_model(folder, stop=[stop])
    assert answer(ours, PROMPT, max_tokens=60)[:2] == (whole[:at], "stop")


def test_eos_of_the_entry_ends_the_answer(folder: Path) -> None:
    tokens = reference_answer(folder, PROMPT, 12)
    eos = tokens[7]
    assert eos not in tokens[:7]
    text, reason, usage = answer(open_model(folder, eos=[eos]), PROMPT)
    assert reason == "stop"
    assert usage.completion_tokens == 8
    vocabulary = PromptTokenizer(folder / "tokenizer.json").vocabulary
    assert text == b"".join(map(vocabulary.bytes_of, tokens[:7])).decode(errors="replace")


def test_eos_of_the_folder_ends_the_answer_and_can_be_forced(model: Backend) -> None:
    text, reason, usage = answer(
        model, PROMPT, sampling=Sampling(temperature=0, logit_bias={EOS_TOKEN_ID: 100.0})
    )
    assert (text, reason, usage.completion_tokens) == ("", "stop", 1)


def test_limits(model: Backend) -> None:
    assert answer(model, PROMPT, max_tokens=1)[2].completion_tokens == 1
    assert answer(model, PROMPT)[2].completion_tokens == 12  # the entry's
    _, reason, usage = answer(model, "a" * 505, max_tokens=100)
    assert (reason, usage.completion_tokens) == ("length", 7)
    _, reason, usage = answer(model, "a" * 511, max_tokens=100)
    assert (reason, usage.completion_tokens) == ("length", 1)


@pytest.mark.parametrize("length", [512, 600, 100_000, 30_000_000])
def test_a_prompt_without_room_is_refused_with_the_numbers(model: Backend, length: int) -> None:
    for control in (True, False):
        with pytest.raises(BackendError) as caught:
            answer(model, [Span("a" * length, control)])
        assert caught.value.code == "context_length_exceeded"
        assert "512" in caught.value.message
    if length <= 600:
        assert str(length) in caught.value.message
    answer(model, "a")


def test_counting_a_hopeless_prompt_is_refused_and_a_long_one_is_counted(model: Backend) -> None:
    assert model.count_tokens([Span("a" * 600, False)]) == 600
    with pytest.raises(BackendError, match="at least"):
        model.count_tokens([Span("a" * 1_000_000, False)])


def test_the_shorter_context_counts(folder: Path) -> None:
    assert open_model(folder, context_length=100).info.context_length == 100
    longer = open_model(folder, context_length=9999)
    assert longer.info.context_length == 512
    assert any("512" in warning for warning in longer.info.warnings)


def test_weights_that_compute_no_numbers_are_reported(tmp_path: Path) -> None:
    damaged = tiny_folder(tmp_path)
    data = damaged / "segment_002.data"
    values = np.fromfile(data, np.float32)
    values[::7] = np.inf
    values.tofile(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backends.hybrid.folder.HASHED_AT_LOAD_BYTES", 0)  # as for a file of real size
        broken = open_model(damaged)
    with pytest.raises(BackendError, match="NaN or infinity") as caught:
        answer(broken, PROMPT)
    assert caught.value.code == "model_corrupt"


@pytest.mark.parametrize(("guard", "made"), [(True, 288), (False, 400)])
def test_an_answer_that_only_repeats_itself_ends(folder: Path, guard: bool, made: int) -> None:
    model = open_model(folder, repeat_guard=guard)
    sink = Recorder()
    always = Sampling(temperature=0, logit_bias={ord("!"): 100.0})
    text, reason, usage = answer(model, PROMPT, sink, sampling=always, max_tokens=400)
    assert (text, usage.completion_tokens) == (text[:1] * made, made)
    assert reason == ("stop" if guard else "length")
    assert len(sink.warnings) == guard
    model.close()

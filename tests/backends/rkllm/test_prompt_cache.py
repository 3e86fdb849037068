"""The prompt-cache file and its record, on the stand-in: made once, made again, or given up. One load after
another in this process; what ends a process is tried in tests/rkllm."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.base import BackendError, Span
from backends.rkllm.loading import load
from backends.spec import STOPPED_FILE, ModelSpec, PromptCacheOptions, RkllmOptions
from tests.standin.rkllm.build import build
from tests.standin.rkllm.model_file import calls, write_model
from tests.tiny import tiny_tokenizer

PREFIX = [
    Span("<|im_start|>system\n", True),
    Span("You are a helpful assistant that answers each question in one sentence. " * 3, False),
    Span("<|im_end|>\n<|im_start|>user\n", True),
]


class Model:
    """A model with a prompt cache. `load` loads it, closes it again and returns its warnings."""

    def __init__(self, directory: Path, log: Path) -> None:
        self.file = directory / "m.rkllm"
        self.cache = directory / "prompt-cache"
        self.record_file = self.cache / "record.json"
        self._log = log
        (directory / "tokenizer.json").write_text(tiny_tokenizer())
        self.spec = ModelSpec(
            model_id="m",
            backend="rkllm",
            path=str(self.file),
            context_length=512,
            max_tokens=100,
            eos=["<|im_end|>"],
            tokenizer=str(directory / "tokenizer.json"),
            rkllm=RkllmOptions(
                library=str(build("1.3.1")),
                prompt_cache=PromptCacheOptions(directory=str(self.cache), prefix=PREFIX),
            ),
        )
        self.write()

    def write(self, **script: Any) -> None:
        write_model(self.file, **script)

    def change(self, **options: Any) -> None:
        self.spec = msgspec.structs.replace(
            self.spec, rkllm=msgspec.structs.replace(self.spec.rkllm, **options)
        )

    def load(self) -> list[str]:
        backend = load(self.spec, lambda done, what: None)
        backend.close()
        return backend.info.warnings

    @property
    def tried(self) -> tuple[int, int]:
        """How often the library was asked to save, and to load."""
        runs = calls(self._log, "rkllm_run")
        assert len(runs) == sum(run["save_prompt_cache"] for run in runs)
        return len(runs), len(calls(self._log, "rkllm_load_prompt_cache"))

    def files(self) -> list[Path]:
        return sorted(self.cache.glob("*.cache*"))

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.record_file.read_text())
        return found


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("RKLLM_STANDIN_LOG", str(log))
    return Model(tmp_path, log)


def test_saved_once_and_then_loaded(model: Model) -> None:
    assert model.load() == []
    (file,) = model.files()
    assert model.record() == {
        "key": file.stem,
        "state": "saved",
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "why": None,
    }
    assert model.load() == model.load() == []
    assert model.tried == (1, 2)
    assert model.files() == [file]


def test_a_model_that_refuses_is_asked_once(model: Model) -> None:
    model.write(prompt_cache="refuse")
    for _ in range(2):
        (warning,) = model.load()
        assert "does not save it" in warning and str(model.record_file) in warning
    assert (model.tried, model.files(), model.record()["state"]) == ((1, 0), [], "refused")
    model.record_file.unlink()
    model.load()
    assert model.tried == (2, 0)  # as the warning says


def test_a_model_that_only_says_it_saves(model: Model) -> None:
    model.write(prompt_cache="silent")
    assert "does not save it" in model.load()[0]
    assert model.record()["state"] == "refused"


def test_an_engine_that_is_lost_in_saving(model: Model) -> None:
    model.write(faults=[{"at": "prefill", "kind": "submit"}])
    with pytest.raises(BackendError) as caught:
        model.load()
    assert caught.value.code == "backend_crashed"
    assert "failed" in model.load()[0]
    assert model.tried == (1, 0)


@pytest.mark.parametrize("left", [0, 30, -1])
def test_a_damaged_file_is_made_again_and_never_loaded(model: Model, left: int) -> None:
    model.write(prompt_cache="segv")  # a damaged file would be the end of this process
    model.load()
    (file,) = model.files()
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    assert model.load() == []
    assert model.files() == [file] and file.read_bytes() == whole
    assert model.tried == (2, 0)
    file.unlink()
    assert model.load() == []
    assert model.tried == (3, 0)


def test_a_file_that_the_runtime_will_not_load(model: Model) -> None:
    model.load()
    (file,) = model.files()
    file.write_bytes(b"nothing of its own")
    digest = hashlib.sha256(b"nothing of its own").hexdigest()
    model.record_file.write_text(json.dumps(model.record() | {"sha256": digest}))
    for _ in range(2):
        (warning,) = model.load()
        assert "would not load" in warning
    assert model.tried == (1, 1)


@pytest.mark.parametrize("state", ["saving", "loading"])
def test_an_attempt_that_did_not_come_to_its_end_is_not_made_again(model: Model, state: str) -> None:
    model.load()
    model.record_file.write_text(json.dumps(model.record() | {"state": state}))
    for _ in range(2):
        (warning,) = model.load()
        assert f"{state} it ended the runtime" in warning
    assert model.tried == (1, 0)


def _another_model(model: Model) -> None:
    model.write(answers=["Another."])


def _another_runtime(model: Model) -> None:
    model.change(library=str(build("1.3.2")))


def _another_prompt(model: Model) -> None:
    options = PromptCacheOptions(directory=str(model.cache), prefix=[*PREFIX, Span("x", True)])
    model.change(prompt_cache=options)


def _another_context(model: Model) -> None:
    model.spec = msgspec.structs.replace(model.spec, context_length=400)


@pytest.mark.parametrize("change", [_another_model, _another_runtime, _another_prompt, _another_context])
def test_what_a_cache_depends_on(model: Model, change: Callable[[Model], None]) -> None:
    model.load()
    (before,) = model.files()
    change(model)
    assert model.load() == []
    (after,) = model.files()  # and the old one is gone
    assert after != before
    assert model.tried == (2, 0)


def test_prefixes_that_are_too_short_or_too_long(model: Model) -> None:
    for prefix, why in (
        ([], "prompt is empty"),
        ([Span("<|im_start|>user\n", True)], "default_system"),
        ([Span("hello " * 509, False)], "over 508"),
        ([Span("hello " * 100_000, False)], "context"),
    ):
        model.change(prompt_cache=PromptCacheOptions(directory=str(model.cache), prefix=prefix))
        (warning,) = model.load()
        assert "prompt_cache has no effect" in warning and why in warning
    assert model.tried == (0, 0)
    assert not model.cache.exists()


def test_a_directory_that_cannot_be_used(model: Model) -> None:
    model.cache.write_text("in the way")
    (warning,) = model.load()
    assert "cannot be used" in warning
    assert model.tried == (0, 0)


@pytest.mark.parametrize("text", ["", "{", '{"key": 1}', "[]", '{"key": "x", "state": "else"}'])
def test_a_record_that_cannot_be_read_is_none(model: Model, text: str) -> None:
    model.cache.mkdir()
    model.record_file.write_text(text)
    assert model.load() == []
    assert model.record()["state"] == "saved"


def test_a_library_without_prompt_caches(model: Model, tmp_path: Path) -> None:
    library = build("1.3.1", omit=["rkllm_load_prompt_cache"], into=tmp_path / "lesser")
    model.change(library=str(library))
    (warning,) = model.load()
    assert "no such functions" in warning
    assert model.tried == (0, 0)


def test_an_attempt_that_was_stopped_on_purpose_is_made_again(model: Model) -> None:
    model.load()
    stopped = model.cache / STOPPED_FILE
    for state, tried in (("loading", (1, 1)), ("saving", (2, 1))):
        model.record_file.write_text(json.dumps(model.record() | {"state": state}))
        stopped.touch()
        assert model.load() == []
        assert (model.tried, model.record()["state"], stopped.exists()) == (tried, "saved", False)
    # One stop is not an excuse for what comes after it.
    model.record_file.write_text(json.dumps(model.record() | {"state": "loading"}))
    (warning,) = model.load()
    assert "ended the runtime" in warning


def test_a_refusal_is_none_the_less_one_for_a_stop(model: Model) -> None:
    model.write(prompt_cache="refuse")
    model.load()
    (model.cache / STOPPED_FILE).touch()
    (warning,) = model.load()
    assert "does not save it" in warning
    assert model.tried == (1, 0)

"""A library that does what a test tells it, and models on it."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.base import TokenLogprob
from backends.engine import Backend
from backends.rkllm.loading import load
from backends.spec import ModelSpec, RkllmOptions
from tests.backends.rkllm.clib import DEFAULTS, PARAM, SCRIPTED, compile_library
from tests.tiny import tiny_tokenizer

PRINT, WAIT_FOR_ABORT, RETURN, NULL_RESULT, WAIT_FOR_ABORT_CALL = range(100, 105)
NORMAL, WAITING, FINISH, ERROR = 0, 1, 2, 3
LOG = (
    "I rkllm: rkllm-runtime version: 1.3.1, rknpu driver version: 0.9.8, platform: RK3588\n"
    "I rkllm: rkllm-toolkit version: 1.3.1, max_context_limit: 4096, npu_core_num: 3, "
    "target_platform: RK3588, model_dtype: W8A8\n"
)
Step = tuple[int, int, bytes | None]


class CStep(ctypes.Structure):
    _fields_ = [("what", ctypes.c_int), ("number", ctypes.c_int), ("text", ctypes.c_char_p)]


class Scripted:
    """The test's own view of the library: its globals."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.c = ctypes.CDLL(str(path))
        self._keep: list[Any] = []
        self.log(LOG)

    def log(self, text: str) -> None:
        """Set what is printed in init."""
        (ctypes.c_char * 4096).in_dll(self.c, "init_log").value = text.encode()

    def script(self, *steps: Step, perf: tuple[int, int] = (0, 0)) -> None:
        """Set what a run does; perf: prefilled and generated tokens."""
        array = (CStep * 4096).in_dll(self.c, "steps")
        for index, (what, number, text) in enumerate(steps):
            array[index] = CStep(what, number, text)
        self._keep.append(steps)
        self.set("n_steps", len(steps))
        figures = (ctypes.c_int * 5).in_dll(self.c, "perf")
        figures[1], figures[3] = perf

    def answer(self, *pieces: tuple[int, bytes | None], perf: tuple[int, int] = (0, 0)) -> None:
        """Set a run that makes these tokens and finishes."""
        self.script(*((NORMAL, *piece) for piece in pieces), (FINISH, 0, None), perf=perf)

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.c, name).value = value

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.c, name).value

    def struct(self, name: str, kind: Any) -> Any:
        return kind.in_dll(self.c, name)

    def text(self, name: str, size: int = 65536) -> str:
        return (ctypes.c_char * size).in_dll(self.c, name).value.decode()


class ListSink:
    """Keeps what a run produces."""

    def __init__(self, on_delta: Callable[[str], None] = lambda text: None) -> None:
        self.texts: list[str] = []
        self.warnings: list[str] = []
        self.tokens = 0
        self.prefills: list[tuple[int, int]] = []
        self._on_delta = on_delta

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def prefill(self, done: int, total: int) -> None:
        self.prefills.append((done, total))

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        assert logprobs is None
        self.texts.append(text)
        self.tokens += tokens
        self._on_delta(text)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scripted")
    return compile_library(directory / "librkllmrt.so", PARAM + DEFAULTS + SCRIPTED)


@pytest.fixture
def scripted(compiled: Path, tmp_path: Path) -> Scripted:
    return Scripted(Path(shutil.copy(compiled, tmp_path)))


@pytest.fixture
def spec(scripted: Scripted, tmp_path: Path) -> ModelSpec:
    """A model with a tokenizer."""
    model = tmp_path / "tiny.rkllm"
    model.write_bytes(b"weights")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tiny_tokenizer())
    return ModelSpec(
        model_id="tiny",
        backend="rkllm",
        path=str(model),
        context_length=512,
        max_tokens=100,
        eos=["<|im_end|>"],
        tokenizer=str(tokenizer),
        rkllm=RkllmOptions(library=str(scripted.path), runtime="==1.3.1"),
    )


@pytest.fixture
def start() -> Iterator[Callable[[ModelSpec], Backend]]:
    """Loads models and closes them after the test."""
    backends: list[Backend] = []

    def start(spec: ModelSpec) -> Backend:
        backends.append(load(spec, lambda done, what: None))
        return backends[-1]

    yield start
    for backend in backends:
        backend.close()

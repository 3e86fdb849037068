"""A made-up board for `rkserve serve`: runtime libraries and model files of the stand-in, memory, a lock.

What reached the library stands in its call log, which the tests read.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import yaml

from server.registry import Entry, load_registry
from server.settings import Settings
from tests.demo_model import MODEL, ROOT, demo_models_dir
from tests.serving import PATIENCE, running_server
from tests.standin.rkllm.build import build
from tests.standin.rkllm.model_file import calls, write_model

MEMORY_KB = 8 * 1024 * 1024


class Server:
    """A running server, and clients of it that never retry, so that no failure is hidden."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60 * PATIENCE
        )

    def ask(self, model: str, text: str = "Hi", **options: Any) -> openai.types.chat.ChatCompletion:
        """Return the answer to one question."""
        answer: openai.types.chat.ChatCompletion = self.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], **options
        )
        return answer

    def says(self, model: str, text: str = "Hi", **options: Any) -> str:
        """Return the text of the answer to one question."""
        return self.ask(model, text, **options).choices[0].message.content or ""

    def model(self, model: str) -> dict[str, Any]:
        """Return what /v1/models/{id} says."""
        return self.client.models.retrieve(model).model_dump()


class Board:
    """Directories of one machine. Add runtimes and models, then `serve`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.models = directory / "models"
        self.runtimes = directory / "runtimes"
        self.sysroot = directory / "sysroot"
        self.log = directory / "calls.jsonl"
        self.npu = directory / "npu"
        for path in (self.models, self.runtimes, self.npu, self.sysroot / "proc", self.sysroot / "run/lock"):
            path.mkdir(parents=True)
        (self.sysroot / "proc/meminfo").write_text(f"MemAvailable: {MEMORY_KB} kB\n", encoding="ascii")
        self.python_path = [ROOT]
        self._entries: dict[str, dict[str, Any]] = {}

    def add_runtime(self, version: str = "1.3.1", omit: Sequence[str] = ()) -> Path:
        """Install the stand-in, without these functions, in a directory named by its version."""
        return build(version, omit=omit, into=self.runtimes / version)

    def add_packaged(self, model: str, *, tokenizer: bool = False, **script: Any) -> Entry:
        """Install an entry of the packaged models.yaml with a model file of this script.

        tokenizer: with SmolLM2's in the place of the one that would be pulled.
        """
        entry = load_registry(Settings(models_dir=self.models)).resolve(model)
        write_model(entry.path(self.models), **script)
        if tokenizer:
            add_tokenizer(entry.directory(self.models))
        return entry

    def add(self, model: str, entry: dict[str, Any] | None = None, **script: Any) -> str:
        """Add an entry of a small model, these keys changed (None: left out), and its file; return its id."""
        self._entries[model] = {
            "backend": "rkllm",
            "file": "m.rkllm",
            "runtime": "==1.3.1",
            "template": "chatml",
            "eos": ["<|im_end|>"],
            "context_length": 2048,
            "memory_mb": 100,
            "license": {"id": "Apache-2.0"},
        } | (entry or {})
        self._entries[model] = {
            key: value for key, value in self._entries[model].items() if value is not None
        }
        write_model(self.models / model / "m.rkllm", **script)
        return model

    def add_entry(self, model: str, entry: dict[str, Any]) -> None:
        """Add an entry whose files are somebody else's to write."""
        self._entries[model] = dict(entry)

    def calls(self, *names: str) -> list[dict[str, Any]]:
        """Return what has reached the library so far."""
        return calls(self.log, *names)

    def environment(self, **settings: Any) -> dict[str, str]:
        """Return the variables by which a command finds this board, and those of these settings."""
        environment = {
            "PYTHONPATH": ":".join(map(str, self.python_path)),
            "RKLLM_STANDIN_LOG": str(self.log),
            "RKLLM_STANDIN_BOARD": str(self.npu),
            "RKSERVE_RUNTIME_DIRS": str(self.runtimes),
            "RKSERVE_SYSROOT": str(self.sysroot),
            **{f"RKSERVE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        if self._entries:
            path = self.directory / "models.yaml"
            path.write_text(yaml.safe_dump({"version": 1, "models": self._entries}))
            environment["RKSERVE_MODELS_FILE"] = str(path)
        return environment

    @contextmanager
    def serve(self, **settings: Any) -> Iterator[Server]:
        """Run `rkserve serve` until the block ends."""
        environment = self.environment(**settings)
        command = [sys.executable, "-P", "-m", "server.cli", "serve"]
        with running_server(
            command, models_dir=self.models, cwd=self.directory, environment=environment
        ) as url:
            server = Server(url)
            with server.client:
                yield server


def add_tokenizer(directory: Path) -> None:
    """Put SmolLM2's tokenizer where a pulled one would be."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(tokenizer_file(), directory / "tokenizer.json")


def tokenizer_file() -> Path:
    """Return SmolLM2's tokenizer.json."""
    return demo_models_dir() / MODEL / "tokenizer.json"


def run_inputs(entries: Sequence[dict[str, Any]]) -> list[Any]:
    """Return what each run was given: its text, or its token ids."""
    return [
        run["input"]["prompt"] if run["input"]["type"] == "prompt" else run["input"]["ids"] for run in entries
    ]

"""What bench.runtime needs on the disk: the stand-in library, a model that plays numbered tokens, an entry.

Tokens are those of bench.replay, made inside the library: the first one's text tells when the run began and
when it was handed over, the last one's when that one was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.replay import Script, token
from tests.standin.rkllm.build import build
from tests.standin.rkllm.model_file import write_model

MODEL = "replay"
CONTEXT_LENGTH = 1_000_000
PREFILL_US = 200  # a token: some ms for the short prompt


@dataclass(frozen=True)
class RuntimeScript(Script):
    """A script that the library plays: the prompt says how many tokens, the model file at what rate."""

    def prompt(self) -> str:
        return f"play {self.tokens} tokens"


@dataclass(frozen=True)
class Files:
    """A directory for rkserve's settings; the model's file and the library stand in it."""

    directory: Path
    library: Path

    @property
    def model(self) -> Path:
        return self.directory / "models" / MODEL / "m.rkllm"

    def environment(self) -> dict[str, str]:
        """Return rkserve's settings for a server of this model alone."""
        return {
            "RKSERVE_MODELS_FILE": str(self.directory / "models.yaml"),
            "RKSERVE_MODELS_DIR": str(self.directory / "models"),
            "RKSERVE_RUNTIME_DIRS": str(self.library.parent),
            "RKSERVE_SYSROOT": str(self.directory / "sysroot"),
            "RKSERVE_PRELOAD": MODEL,
            "RKSERVE_LOG_LEVEL": "warning",
        }


def write_files(directory: Path, rate: float, lengths: Sequence[int]) -> Files:
    """Write a model that plays answers of these lengths at `rate` tokens a second (0: without a delay)."""
    files = Files(directory, build(into=directory / "runtime"))
    (directory / "sysroot" / "run" / "lock").mkdir(parents=True)
    write_model(
        files.model,
        token_us=1e6 / rate if rate else 0,
        prefill_us=PREFILL_US,
        reuse={"prompt": False},
        context_limit=CONTEXT_LENGTH,
        answers=[
            {"when": RuntimeScript(length, rate, 0).prompt(), "events": _events(length)} for length in lengths
        ],
    )
    entry = {
        "backend": "rkllm",
        "file": "m.rkllm",
        "template": "chatml",
        "eos": ["<|im_end|>"],
        "context_length": CONTEXT_LENGTH,
        "max_tokens": CONTEXT_LENGTH - 1000,
        "memory_mb": 1,
        "license": {"id": "Apache-2.0"},
    }
    # YAML is a superset of JSON.
    (directory / "models.yaml").write_text(json.dumps({"version": 1, "models": {MODEL: entry}}))
    return files


def _events(length: int) -> list[list[object]]:
    texts = ["{{began}},{{now}}", *(token(number) for number in range(1, length - 1)), "|{{now}}"]
    return [[1000 + number % 20_000, text] for number, text in enumerate(texts)]

"""The server under test: its models' files, its keys and settings, its process."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from bench.processes import ROOT, Server, free_port, wait_for
from bench.soak.models import (
    CPU_MODEL,
    HEARTBEAT_S,
    IDLE_UNLOAD_S,
    KEYS,
    LOAD_MS,
    LONG,
    LONG_US,
    LONG_WORDS,
    MAX_BODY_MB,
    MEMORY_MB,
    MODELS,
    NPU_MODELS,
    QUESTIONS,
    QUEUE_PER_CLIENT,
    QUEUE_SIZE,
    TOKEN_US,
    answer,
    key,
)
from tests.rkllm.board import Board
from tests.sdk.servers import entry
from tests.tiny import tiny_folder

STOP_S = 30


@dataclass(frozen=True)
class Place:
    """A running server. process: its own; workers are its children."""

    port: int
    process: psutil.Process
    models_file: Path

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes, those that are ending included."""
        return self.process.children()

    def change_models(self, number: int) -> None:
        """Change one of the entries so that nobody notices, and have the server read them again."""
        document = yaml.safe_load(self.models_file.read_text())
        entry = document["models"][MODELS[number % len(MODELS)]]
        entry["max_tokens"] = 1024 + number
        written = self.models_file.with_suffix(".new")
        written.write_text(yaml.safe_dump(document))
        written.replace(self.models_file)
        self.process.send_signal(signal.SIGHUP)


@contextmanager
def place(directory: Path, log: str) -> Iterator[Place]:
    """Run the server until the block ends, its log in the file `log`. Raises RuntimeError for a bad end."""
    board = Board(directory)
    board.add_runtime()
    for model in NPU_MODELS:
        answers: list[object] = [
            {"when": f"<{number}>", "events": [answer(model, number)], "repeat": 1}
            for number in range(QUESTIONS)
        ]
        # Of words that differ, or it would be ended for repeating itself.
        long: list[object] = [event for n in range(LONG_WORDS) for event in (f" {n}w", {"delay_us": LONG_US})]
        answers.append({"when": LONG, "events": long})
        board.add(model, {"memory_mb": MEMORY_MB}, answers=answers, token_us=TOKEN_US, load_ms=LOAD_MS)
    # An output layer of its own makes answers that depend on more than the last word of the prompt.
    tiny_folder(board.models / CPU_MODEL / "folder", tied_lm_head=False)
    board.add_entry(CPU_MODEL, entry() | {"memory_mb": MEMORY_MB})
    keys = directory / "keys"
    keys.write_text("".join(f"key{n}:{hashlib.sha256(key(n).encode()).hexdigest()}\n" for n in range(KEYS)))
    port = free_port()
    settings: Mapping[str, object] = {
        "port": port,
        "models_dir": board.models,
        "api_keys_file": keys,
        "queue_size": QUEUE_SIZE,
        "queue_per_client": QUEUE_PER_CLIENT,
        "max_body_mb": MAX_BODY_MB,
        "heartbeat_s": HEARTBEAT_S,
        "idle_unload_s": IDLE_UNLOAD_S,
        "abort_grace_s": 3,
        "stream_ping_s": 1,
        "metrics_open": "on",
        "log_level": "debug",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RKSERVE_")}
    environment |= board.environment(**settings) | {"XDG_CONFIG_HOME": str(directory / "config")}
    del environment["RKLLM_STANDIN_LOG"]  # it would grow to gigabytes
    with open(log, "ab", buffering=0) as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.soak.serve"],
            cwd=directory,
            env=environment | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(Server(process, "127.0.0.1", port, time.monotonic()), "/health")
        yield Place(port, psutil.Process(process.pid), directory / "models.yaml")
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the server did not end within {STOP_S} s") from None
        finally:
            _, left = psutil.wait_procs(family, 5)
            for one in left:
                one.kill()
    if left or process.returncode:
        raise RuntimeError(f"the server ended with {process.returncode} and left {len(left)} processes")

"""The server under test: stand-in models whose answers are known, a small hybrid one, keys, limits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.processes import ROOT, Server, free_port, wait_for
from tests.rkllm.board import Board
from tests.sdk.servers import entry
from tests.tiny import tiny_folder

NPU_MODELS = ("first", "second", "seldom")
CPU_MODEL = "hybrid"
MODELS = (*NPU_MODELS, CPU_MODEL)
MEMORY_MB = 100  # of each
QUESTIONS = 60  # that each stand-in model has an answer of its own to
LONG = "the long one"
LONG_WORDS = 1000
LONG_US = 10_000
TOKEN_US = 1500
LOAD_MS = 200
KEYS = 20
QUEUE_SIZE = 64
QUEUE_PER_CLIENT = 6
MAX_BODY_MB = 1
HEARTBEAT_S = 3
IDLE_UNLOAD_S = 5
STOP_S = 30


def question(number: int) -> str:
    """Return what a stand-in model is asked; no question is part of another."""
    return f"Please answer question <{number}> of mine."


def answer(model: str, number: int) -> str:
    """Return what this model answers to it, which no other answer is."""
    words = 5 + (7 * number) % 60
    return " ".join(f"{model}{number}w{word}" for word in range(words))


def key(number: int) -> str:
    """Return the number-th key."""
    return f"rk-soak-{number}"


@dataclass(frozen=True)
class Place:
    """A running server. process: its own; workers are its children."""

    port: int
    process: psutil.Process

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes, those that are ending included."""
        return self.process.children()


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
        yield Place(port, psutil.Process(process.pid))
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

"""The two servers that the SDKs are tried on: one with a real small model, one with scripted workers."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.rkllm.board import Board, add_tokenizer
from tests.scripted_server import command
from tests.serving import running_server
from tests.tiny import tiny_folder

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tiny"
EMBEDDER = "embedder"
EMBEDDING_SIZE = 96
KEY = "sk-of-the-tests"
CONTEXT_LENGTH = 512
MAX_BODY_MB = 1
QUEUE_SIZE = 1


@dataclass(frozen=True)
class Endpoint:
    """Where a client finds a server. base_url is what an SDK is given."""

    url: str
    key: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


def entry(folder: str = "folder") -> dict[str, object]:
    """Return a registry entry for a hybrid folder."""
    return {
        "backend": "hybrid",
        "folder": folder,
        "template": "chatml",
        "eos": ["<|im_end|>"],
        "context_length": CONTEXT_LENGTH,
        "memory_mb": 50,
        "license": {"id": "Apache-2.0"},
    }


@contextmanager
def embedding_server(directory: Path) -> Iterator[Endpoint]:
    """Run a server with an embedding model on the stand-in for the vendor's library."""
    board = Board(directory)
    board.add_runtime()
    embedding = {
        "capabilities": ["embeddings"],
        "tokenizer": "tokenizer.json",
        "context_length": CONTEXT_LENGTH,
        "embeddings": {"append": "<|endoftext|>", "matryoshka": True},
    }
    board.add(EMBEDDER, embedding, embd=EMBEDDING_SIZE)
    add_tokenizer(board.models / EMBEDDER)
    with board.serve() as server:
        yield Endpoint(server.url, "unused")


def write_registry(directory: Path, models: dict[str, dict[str, object]]) -> Path:
    """Write a models.yaml and return its path."""
    path = directory / "models.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "models": models}))
    return path


@contextmanager
def real_server(directory: Path) -> Iterator[Endpoint]:
    """Run `rkserve serve` with the tiny model, another whose segment is cut short, and a key."""
    models = directory / "models"
    # An output layer of its own makes answers that depend on more than the last word of the prompt.
    tiny_folder(models / MODEL / "folder", tied_lm_head=False)
    broken = tiny_folder(models / "broken" / "folder")
    segment = max(broken.glob("segment_*.data"))
    segment.write_bytes(segment.read_bytes()[:-100])
    keys = directory / "keys"
    keys.write_text(f"tests:{hashlib.sha256(KEY.encode()).hexdigest()}\n")
    environment = {
        "PYTHONPATH": str(ROOT),
        "RKSERVE_MODELS_FILE": str(write_registry(directory, {MODEL: entry(), "broken": entry()})),
        "RKSERVE_API_KEYS_FILE": str(keys),
        "RKSERVE_MAX_BODY_MB": str(MAX_BODY_MB),
        "RKSERVE_PRELOAD": MODEL,
    }
    serve = [sys.executable, "-P", "-m", "server.cli", "serve"]
    with running_server(serve, models_dir=models, cwd=directory, environment=environment, ready=True) as url:
        yield Endpoint(url, KEY)


@contextmanager
def scripted_server(directory: Path, *, queue_size: int = QUEUE_SIZE) -> Iterator[Endpoint]:
    """Run a server whose model does what it is told, with so much room in its queue."""
    models = directory / "models"
    for model in (MODEL, "broken"):
        folder = models / model / "folder"
        folder.mkdir(parents=True)
        (folder / "meta2.json").write_text("{}")
    environment = {
        "PYTHONPATH": str(ROOT),
        "RKSERVE_MODELS_FILE": str(write_registry(directory, {MODEL: entry(), "broken": entry()})),
        "RKSERVE_QUEUE_SIZE": str(queue_size),
        "RKSERVE_STREAM_PING_S": "5",
        "RKSERVE_PRELOAD": MODEL,
    }
    with running_server(
        command("tests.sdk.scripted_worker"),
        models_dir=models,
        cwd=directory,
        environment=environment,
        ready=True,
    ) as url:
        yield Endpoint(url, "unused")

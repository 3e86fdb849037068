"""All that a test with Open WebUI needs, running: rkserve, a recorder, Open WebUI, a page in a browser.

The chats are those of the real demo model. Beside it there is the same one with a short context, and on the
stand-in for the vendor's library a side model that writes one title, and a model for embeddings.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from tests.demo_model import MODEL, demo_models_dir
from tests.rkllm.board import Board
from tests.serving import running_server
from tests.standin.rkllm.model_file import write_model
from tests.webui import setup
from tests.webui.open_webui import running_open_webui
from tests.webui.page import Page, open_page
from tests.webui.recorder import Recorder, recording

KEY = "sk-of-the-tests"
SHORT = "smollm2-short"
SHORT_CONTEXT = 256
TITLER = "titler"
TITLE = "European Capitals"
EMBEDDER = "embedder"
EMBEDDING_SIZE = 64


@dataclass(frozen=True)
class Rig:
    """What runs. url: of rkserve itself, for clients beside the page."""

    url: str
    recorder: Recorder
    page: Page
    home: str
    directory: Path
    queue_size: int

    def worker(self, model: str) -> psutil.Process:
        """Return the process in which a model is loaded, as rkserve's log tells it."""
        (log,) = self.directory.glob("server-*.log")
        pids = re.findall(rf"loaded {re.escape(model)} on .*?, pid (\d+)", log.read_text())
        return psutil.Process(int(pids[-1]))


@contextmanager
def running_rig(
    directory: Path, settings: Mapping[str, str] | None = None, *, queue_size: int = 8
) -> Iterator[Rig]:
    """Run everything until the block ends, Open WebUI with these settings. Raises setup.CannotSetUp."""
    driver, browser, command = setup.driver(), setup.browser(), setup.open_webui()
    board = Board(directory / "board")
    board.add_runtime()
    environment = board.environment(
        models_file=_models(board, directory),
        api_keys_file=_keys(directory),
        queue_size=queue_size,
        preload=MODEL,
    )
    serve = [sys.executable, "-P", "-m", "server.cli", "serve"]
    with (
        running_server(
            serve, models_dir=board.models, cwd=directory, environment=environment, ready=True
        ) as url,
        recording(url) as recorder,
        running_open_webui(command, f"{recorder.url}/v1", KEY, directory, settings or {}) as home,
        open_page(driver, browser, directory) as page,
    ):
        yield Rig(url, recorder, page, home, directory, queue_size)


def _models(board: Board, directory: Path) -> Path:
    """Put the models there and write a models.yaml that describes them; return its path."""
    folder = str(demo_models_dir() / MODEL)
    demo = {
        "backend": "hybrid",
        "folder": folder,
        "template": "smollm2",
        "eos": ["<|im_end|>"],
        "context_length": 8192,
        "memory_mb": 1200,
        "sampling": {"temperature": 0.2, "top_p": 0.9},
        "side_model": TITLER,
        "license": {"id": "Apache-2.0"},
    }
    standin = {
        "backend": "rkllm",
        "file": "m.rkllm",
        "runtime": "==1.3.1",
        "template": "chatml",
        "eos": ["<|im_end|>"],
        "context_length": 4096,
        "memory_mb": 100,
        "license": {"id": "Apache-2.0"},
    }
    models = {
        MODEL: demo,
        SHORT: demo | {"context_length": SHORT_CONTEXT, "memory_mb": 900, "side_model": None},
        TITLER: standin,
        EMBEDDER: standin | {"capabilities": ["embeddings"], "embeddings": {"pooling": "last"}},
    }
    write_model(board.models / TITLER / "m.rkllm", answers=[json.dumps({"title": TITLE})])
    write_model(board.models / EMBEDDER / "m.rkllm", embd=EMBEDDING_SIZE)
    path = directory / "models.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "models": models}))
    return path


def _keys(directory: Path) -> Path:
    path = directory / "keys"
    path.write_text(f"webui:{hashlib.sha256(KEY.encode()).hexdigest()}\n")
    return path

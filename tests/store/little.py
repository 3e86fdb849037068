"""A small model on a hub, its entry, and what a pull of it leaves."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.server.cli.command import COMMAND, environment, models_dir, rkserve
from tests.store.hub_server import Hub

REPO, BASE = "maker/Little-rkllm", "maker/Little"
CONTENT = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
TOKENIZER = b'{"version": "1.0"}' + b" " * 3000  # large enough for LFS
CONFIG = b'{"chat_template": "x"}'
FOLDER_FILES = {
    "layer_00.rknn": CONTENT,
    "sub/embedding.npy": CONTENT[:5000],
    "tokenizer.json": b"{}",
    "meta2.json": json.dumps(
        {"version": 2, "segments": [{"file": "layer_00.rknn", "sha256": SHA256}]}
    ).encode(),
}


def entry(home: Path, **keys: Any) -> None:
    """Write the models.yaml of an entry called little."""
    own: dict[str, Any] = {
        "backend": "rkllm",
        "source": {"repo": REPO},
        "file": "Little_w8a8.rkllm",
        "template": "chatml",
        "tokenizer": {"repo": BASE},
        "context_length": 64,
        "memory_mb": 10,
        "license": {"id": "MIT", "notice": "weights modified", "attribution": "Powered by Little"},
    }
    own = {key: value for key, value in (own | keys).items() if value is not None}
    config = home / "config" / "rkserve"
    config.mkdir(parents=True, exist_ok=True)
    (config / "models.yaml").write_text(yaml.safe_dump({"version": 1, "models": {"little": own}}))


def pull(home: Path, hub: Hub, *more: str) -> subprocess.CompletedProcess[str]:
    done = rkserve("pull", "little", *more, home=home, **hub.environment())
    assert "Traceback" not in done.stderr
    return done


def files(home: Path, hidden: bool = False) -> dict[str, bytes]:
    """What lies in the model's directory, by name."""
    directory = models_dir(home) / "little"
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (hidden or not path.name.startswith("."))
    }


WHOLE = {
    "Little_w8a8.rkllm": CONTENT,
    "tokenizer.json": TOKENIZER,
    "tokenizer_config.json": CONFIG,
    "licenses/maker--Little-rkllm/LICENSE": b"Do good.\n",
    "licenses/maker--Little/NOTICE": b"By us.\n",
}


def kill_when_stalled(home: Path, hub: Hub) -> None:
    """Run a pull and kill it when the storage has stopped sending."""
    process = subprocess.Popen(
        [*COMMAND, "pull", "little"],
        cwd=home,
        env=environment(home, **hub.environment() | {"HF_HUB_DOWNLOAD_TIMEOUT": "60"}),
        stderr=subprocess.DEVNULL,
    )
    try:
        assert hub.stalled.wait(60)
        partials = models_dir(home) / "little"
        while not any(path.stat().st_size for path in partials.glob("*/.*.partial")) and not any(
            path.stat().st_size for path in partials.glob(".*.partial")
        ):
            assert process.poll() is None  # what was sent is on its way through the loopback
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()

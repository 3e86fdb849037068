"""A real Open WebUI in a process of its own, with a fresh data directory and no internet."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.serving import PATIENCE, free_port

START_S = 240 * PATIENCE

# What docs/open-webui.md tells owners to set for a small model.
TAMED = {
    "DEFAULT_MODEL_PARAMS": '{"function_calling": "legacy", "max_tokens": 256}',
    "DEFAULT_MODEL_METADATA": '{"capabilities": {"usage": true, "builtin_tools": false}}',
    "ENABLE_TAGS_GENERATION": "False",
    "ENABLE_FOLLOW_UP_GENERATION": "False",
}
# A machine without internet: no models of its own, and nothing but the server under test.
OFFLINE = {
    "OFFLINE_MODE": "1",
    "HF_HUB_OFFLINE": "1",
    "ENABLE_OLLAMA_API": "False",
    "RAG_EMBEDDING_ENGINE": "openai",
    "AUDIO_STT_ENGINE": "openai",
    "AUDIO_TTS_ENGINE": "openai",
}


@contextmanager
def running_open_webui(
    command: Path, api_url: str, key: str, directory: Path, **settings: str
) -> Iterator[str]:
    """Run Open WebUI on an API until the block ends; yields its address. Nobody has to sign in."""
    port = free_port()
    data = directory / "data"
    data.mkdir(parents=True)
    log = directory / "open-webui.log"
    environment = {
        **os.environ,
        **OFFLINE,
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "of-the-tests",
        "DATA_DIR": str(data),
        "OPENAI_API_BASE_URL": api_url,
        "OPENAI_API_KEY": key,
        "RAG_OPENAI_API_BASE_URL": api_url,
        "RAG_OPENAI_API_KEY": key,
        **settings,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(command), "serve", "--host", "127.0.0.1", "--port", str(port)],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(f"{url}/health", process, log)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, f"Open WebUI ended:\n{log.read_text(errors='replace')[-3000:]}"
        assert time.monotonic() < deadline, (
            f"Open WebUI did not start:\n{log.read_text(errors='replace')[-3000:]}"
        )
        try:
            if httpx2.get(url, timeout=5).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.25)  # another process starts: there is no event of it to wait for

"""A real Open WebUI in a process of its own, with a fresh data directory and no internet."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.serving import PATIENCE, free_port

START_S = 600 * PATIENCE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "open-webui.md"
# A machine without internet: no models of its own, and nothing but the server under test.
OFFLINE = {
    "OFFLINE_MODE": "1",
    "HF_HUB_OFFLINE": "1",
    "ENABLE_OLLAMA_API": "False",
    "RAG_EMBEDDING_ENGINE": "openai",
    "AUDIO_STT_ENGINE": "openai",
    "AUDIO_TTS_ENGINE": "openai",
}


def documented() -> dict[str, str]:
    """Return the settings that the documentation tells owners to begin with, and those for documents."""
    blocks = re.findall(r"^ *```ini\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in "".join(blocks).strip().splitlines()]
    assert all(re.fullmatch(r"[A-Z_]+=\S+", line) for line in lines), "`env $(cat FILE)` would split these"
    return dict(line.split("=", 1) for line in lines)


@contextmanager
def running_open_webui(
    command: Path, api_url: str, key: str, directory: Path, settings: Mapping[str, str]
) -> Iterator[str]:
    """Run Open WebUI on an API until the block ends; yields its address. Nobody has to sign in."""
    port = free_port()
    data = directory / "data"
    data.mkdir(parents=True)
    log = directory / "open-webui.log"
    environment = {
        **os.environ,
        **OFFLINE,
        **settings,
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "of-the-tests",
        "DATA_DIR": str(data),
        **{name: api_url for name in settings if name.endswith("_BASE_URL")},
        **{name: key for name in settings if name.endswith("_API_KEY")},
        "OPENAI_API_BASE_URL": api_url,
        "OPENAI_API_KEY": key,
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

"""Dockerfile.arm64: the image is built for aarch64, answers on both engines, and stops as it should.

On a PC everything is emulated, some twenty times slower than a board: no time counts but the grace time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import yaml

from tests.demo_model import ROOT
from tests.docker.container import CHAT_S, IMAGE, START_S, USER_ID, Container, built, options, running
from tests.docker.engine import CannotSetUp, Engine, engine
from tests.serving import running_server
from tests.standin.rkllm.build import build
from tests.standin.rkllm.model_file import write_model
from tests.tiny import tiny_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

QUESTION = "What is the capital of France?"
ANSWER = "Grüße von der NPU 🙂: 玉山"
LARGEST_MB = 450
SHARED = {"template": "chatml", "context_length": 512, "license": {"id": "Apache-2.0"}}
RKLLM = {"backend": "rkllm", "file": "m.rkllm", "runtime": "==1.3.1", "eos": ["<|im_end|>"], **SHARED}
ENTRIES = {
    "npu": {**RKLLM, "memory_mb": 100},
    "slow": {**RKLLM, "memory_mb": 100},
    "tiny": {"backend": "hybrid", "folder": ".", "memory_mb": 200, **SHARED},
    "endless": {**RKLLM, "memory_mb": 100},
}
LOADING_MS = 90_000
PATIENT = {"load_timeout_s": 1800, "stall_s": 1800, "heartbeat_s": 120}
GRACE_S = 60  # more than the 10 s of `docker stop`, since all this is emulated


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    """The engine with the image in it, or a skip that says why there is none."""
    try:
        found = engine()
    except CannotSetUp as error:
        pytest.skip(f"no image for linux/arm64 can be built here: {error}")
    with built(found):
        yield found


@dataclass
class State:
    """The directory of a container's volume, and what else is mounted."""

    directory: Path
    mounts: dict[Path, str]
    key: str = ""


@pytest.fixture(scope="module")
def state(docker: Engine, tmp_path_factory: pytest.TempPathFactory) -> State:
    """Models of both engines, the stand-in as the vendor's library, and a key made in a container."""
    outside = tmp_path_factory.mktemp("board")
    directory = outside / "state"
    models = directory / "models"
    write_model(models / "npu" / "m.rkllm", answers=[ANSWER])
    write_model(models / "slow" / "m.rkllm", answers=["Late."], load_ms=LOADING_MS)
    endless = {"events": [{"delay_us": 200_000}, "On and on."], "repeat": -1}
    write_model(models / "endless" / "m.rkllm", answers=[endless])
    tiny_folder(models / "tiny")
    (directory / "models.yaml").write_text(yaml.safe_dump({"version": 1, "models": ENTRIES}))
    library = build("1.3.1", machine="aarch64", into=outside / "1.3.1")
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, USER_ID, USER_ID)
    mounts = {library.parent: "/usr/local/lib/1.3.1:ro"}
    state = State(directory, mounts)
    run = docker.podman_command("run", "--rm", *options(directory, mounts), IMAGE, "key", "add", "tests")
    made = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stderr
    state.key = made.stdout.strip()
    assert (directory / "keys").stat().st_uid == USER_ID
    return state


@pytest.fixture(scope="module")
def served(docker: Engine, state: State) -> Iterator[Container]:
    """A server in a container that is up."""
    with running(docker, state.directory, state.mounts, idle_unload_s=0, **PATIENT) as container:
        container.wait_until_up()
        yield container


def streamed(url: str, key: str, model: str, **more: Any) -> tuple[str, str | None]:
    """Return the text of a streamed answer, which came in pieces, and why it ended."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=CHAT_S) as client:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            stream=True,
            **more,
        )
        choices = [chunk.choices[0] for chunk in stream if chunk.choices]
    pieces = [choice.delta.content for choice in choices if choice.delta.content]
    assert len(pieces) > 1
    return "".join(pieces), choices[-1].finish_reason


def test_what_the_image_says_of_itself(docker: Engine) -> None:
    (image,) = json.loads(docker.podman("image", "inspect", IMAGE))
    config = image["Config"]
    assert (image["Architecture"], image["Os"]) == ("arm64", "linux")
    assert config["User"] == "rkserve"
    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "rkserve"]
    assert config["Cmd"] == ["serve"]
    assert config["Volumes"] == {"/var/lib/rkserve": {}}
    assert image["Size"] < LARGEST_MB * 1_000_000


def test_nothing_of_the_build_is_in_it(docker: Engine) -> None:
    """Neither what builds it, nor secrets, nor anything of the folder that it does not need."""
    with docker.mounted(IMAGE) as root:
        python = root / "opt/rkserve/lib/python3.11/site-packages"
        assert (python / "server").is_dir()
        names = {path.name for path in python.iterdir()}
        assert not names & {"pip", "hatchling", "setuptools", "tests", "gguf", "onnx"}
        assert not any((root / place).exists() for place in ("src", "opt/tools", "opt/wheel", "usr/bin/pip3"))
        assert not any((root / "etc" / secret).exists() for secret in ("pip.conf", "pip-ca.crt"))
        assert not list((root / "usr/local/lib").rglob("README.md"))


def test_without_a_key_it_says_what_to_do(docker: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, USER_ID, USER_ID)
    with running(docker, state, {}) as container:
        docker.podman("wait", container.name, timeout_s=START_S)
        assert container.state()["ExitCode"] == 1
        assert "rkserve key add NAME" in container.log()


def test_a_streamed_chat_on_the_hybrid_engine(served: Container, state: State, tmp_path: Path) -> None:
    """It says what the same model says on this machine, without emulation."""
    command = [sys.executable, "-P", "-m", "server.cli", "serve"]
    environment = {"PYTHONPATH": str(ROOT), "RKSERVE_MODELS_FILE": str(state.directory / "models.yaml")}
    models = state.directory / "models"
    with running_server(command, models_dir=models, cwd=tmp_path, environment=environment) as url:
        expected = streamed(url, "none", "tiny", max_tokens=12)
    assert streamed(served.url, state.key, "tiny", max_tokens=12) == expected


def test_a_streamed_chat_on_the_rkllm_backend(served: Container, state: State) -> None:
    assert streamed(served.url, state.key, "npu") == (ANSWER, "stop")
    (started,) = [entry for entry in served.models(state.key) if entry["id"] == "npu"]
    assert started["runtime"] == "librkllmrt 1.3.1"
    assert (state.directory.parent / "lock" / "rkserve-npu.lock").exists()


def test_who_runs_there(served: Container) -> None:
    processes = served.process_ids()
    assert len([words for words in processes.values() if "backends.worker" in words]) == 2
    for process in processes:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines()
        )
        assert status["Uid"].split() == [str(USER_ID)] * 4
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        assert status["NoNewPrivs"] == "1"


def test_it_is_healthy_and_asks_for_the_key(served: Container) -> None:
    assert served.healthy()
    assert httpx2.get(f"{served.url}/v1/models", timeout=60).status_code == 401


def test_it_stops_in_time_in_the_middle_of_an_answer(docker: Engine, served: Container, state: State) -> None:
    processes = served.process_ids()
    with served.client(state.key) as client:
        stream = client.chat.completions.create(
            model="endless", messages=[{"role": "user", "content": "Go on."}], stream=True
        )
        assert next(iter(stream)).choices
        began = time.monotonic()
        docker.podman("stop", "--time", str(GRACE_S), served.name)
        took = time.monotonic() - began
        with pytest.raises((openai.APIError, httpx2.TransportError)):
            for _ in stream:
                pass
    assert served.state()["ExitCode"] == 0, served.log()
    assert took < GRACE_S
    assert not [process for process in processes if Path(f"/proc/{process}").exists()]


def test_a_slow_load_makes_it_not_ready_but_healthy(docker: Engine, state: State) -> None:
    with running(docker, state.directory, state.mounts, preload="slow", **PATIENT) as container:
        container.wait_until_up()
        assert httpx2.get(f"{container.url}/ready", timeout=60).status_code == 503
        assert container.healthy()
        container.wait_until_up("/ready")

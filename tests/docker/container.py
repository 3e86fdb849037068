"""The image of Dockerfile.arm64, built here, and containers of it, run as docs/docker.md says."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai

from tests.demo_model import ROOT
from tests.docker.engine import Engine, needed_here
from tests.serving import free_port

IMAGE = "localhost/rkserve:arm64-tests"
USER_ID = 10001
CERTIFICATES = "SSL_CERT_FILE"
START_S = 600  # an emulated Python, on a machine that does other things too
CHAT_S = 900
AS_DOCUMENTED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")


@contextmanager
def built(engine: Engine) -> Iterator[str]:
    """Build the image from this tree; yields its name, and removes it in the end."""
    secrets = []
    if certificates := os.environ.get(CERTIFICATES):
        secrets.append(f"--secret=id=ca.crt,src={certificates}")
    if pip_conf := os.environ.get("PIP_CONFIG_FILE"):
        secrets.append(f"--secret=id=pip.conf,src={pip_conf}")
    own = ["--isolation=chroot", "--network=host", "--pull-never", "--layers=false", "--format=docker"]
    command = ["bud", "--platform=linux/arm64", *own, *secrets, "--file=Dockerfile.arm64", f"--tag={IMAGE}"]
    try:
        engine.buildah(*command, str(ROOT))
        yield IMAGE
    finally:
        engine.podman("rm", "--all", "--force")
        engine.buildah("rm", "--all")
        engine.buildah("rmi", "--force", IMAGE)


@dataclass
class Container:
    """A container that runs, with the network of this machine."""

    engine: Engine
    name: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str) -> openai.OpenAI:
        """Return a client that never retries."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=CHAT_S)

    def models(self, key: str) -> list[dict[str, object]]:
        """Return what /v1/models lists."""
        with self.client(key) as client:
            return [model.model_dump() for model in client.models.list()]

    def state(self) -> dict[str, object]:
        """Return what the engine says of its state."""
        state: dict[str, object] = json.loads(self.engine.podman("inspect", self.name))[0]["State"]
        return state

    def log(self) -> str:
        """Return what it has printed, on both streams."""
        done = subprocess.run(
            self.engine.podman_command("logs", self.name),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.stdout

    def healthy(self) -> bool:
        """Return what the image's health check says, run as the engine runs it."""
        (image,) = json.loads(self.engine.podman("image", "inspect", IMAGE))
        kind, *command = image["Healthcheck"]["Test"]
        assert kind == "CMD"
        check = self.engine.podman_command("exec", self.name, *command)
        return subprocess.run(check, capture_output=True, timeout=CHAT_S).returncode == 0

    def process_ids(self) -> dict[int, str]:
        """Return its processes, by their ids outside of it, with their command lines."""
        first = int(str(self.state()["Pid"]))
        namespace = os.readlink(f"/proc/{first}/ns/pid")
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(process / "ns/pid") == namespace:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    found[int(process.name)] = b" ".join(words).decode(errors="replace")
            except OSError:  # it has ended meanwhile
                continue
        return found

    def wait_until_up(self, path: str = "/health") -> None:
        """Wait until it answers 200. Fails with its log if it ends, or does not in time."""
        deadline = time.monotonic() + START_S
        while True:
            assert self.state()["Running"], f"the container ended:\n{self.log()}"
            assert time.monotonic() < deadline, f"{path} did not answer:\n{self.log()}"
            try:
                if httpx2.get(f"{self.url}{path}", timeout=10).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.5)  # another machine starts: there is no event of it to wait for


def options(state: Path, mounts: Mapping[Path, str], **settings: object) -> list[str]:
    """Return the options of `run`: as documented, with this directory as the volume, and these mounts."""
    nothing = state.parent / "nothing"  # see tests/arm64/machine.py: onnxruntime under emulation
    nothing.mkdir(exist_ok=True)
    lock = state.parent / "lock"
    lock.mkdir(exist_ok=True)
    lock.chmod(0o1777)  # as on Debian, for every program that takes turns on the NPU
    volumes = {
        state: "/var/lib/rkserve",
        nothing: "/sys/devices/system/cpu:ro",
        lock: "/run/lock",
        **mounts,
    }
    return [
        *AS_DOCUMENTED,
        *needed_here(),
        "--network=host",
        *(f"--volume={outside}:{inside}" for outside, inside in volumes.items()),
        *(f"--env=RKSERVE_{name.upper()}={value}" for name, value in settings.items()),
    ]


@contextmanager
def running(
    engine: Engine, state: Path, mounts: Mapping[Path, str], **settings: object
) -> Iterator[Container]:
    """Run a server in a container, which need not be up yet; removed in the end."""
    container = Container(engine, f"rkserve-test-{free_port()}", free_port())
    run = options(state, mounts, port=container.port, **settings)
    engine.podman("run", "--detach", f"--name={container.name}", *run, IMAGE)
    try:
        yield container
    finally:
        print(container.log())  # pytest shows it with a failure
        engine.podman("rm", "--force", container.name)

"""rkserve on a booted machine, installed by the commands of docs/service.md, with the stand-in library."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.standin.rkllm.build import build
from tests.standin.rkllm.model_file import write_model
from tests.systemd.machine import REQUIREMENTS, ROOT, Machine, until

VERSION = "0.1.0"
DIST = "/root/dist"
URL = "http://127.0.0.1:8000"
START_S = 90.0


def documented(section: str) -> list[str]:
    """Return the commands of a section of docs/service.md, without sudo: here we are root."""
    page = (ROOT / "docs" / "service.md").read_text()
    text = page.split(f"## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line.removeprefix("$ ").removeprefix("sudo ") for line in "".join(blocks).splitlines()]


def build_wheel(into: Path, version: str = VERSION) -> None:
    """Build the wheel of this tree as `version`, and lay the list of requirements beside it."""
    tree = into / f"tree-{version}"
    tree.mkdir(parents=True)
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    for name in [*target["packages"], *target["force-include"], "README.md", "LICENSE"]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    project = (ROOT / "pyproject.toml").read_text()
    (tree / "pyproject.toml").write_text(project.replace(f'version = "{VERSION}"', f'version = "{version}"'))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)],
        cwd=tree, check=True, capture_output=True, timeout=280,
    )  # fmt: skip
    shutil.rmtree(tree)
    shutil.copy(REQUIREMENTS, into / "requirements.txt")


class Service:
    """The service on its machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.key = ""
        self.installed = ""  # what the installation said

    def prepare(self) -> None:
        """Lay the wheel onto the machine, which is off."""
        build_wheel(self.machine.directory / DIST.lstrip("/"))

    def install(self) -> str:
        """Install as the documentation says, and return what the last command said."""
        commands = documented("Install from the wheel")
        assert len(commands) == 5
        assert commands[0] == "apt install -y python3-venv"  # which this machine has, and no network
        for command in commands[1:-1]:
            self.machine.run(f"cd {DIST} && {command}", 600)
        said = self.machine.run(f"{commands[-1]} 2>&1", 300)
        self.key = next(line for line in said.splitlines() if line.startswith("rk-"))
        return said

    def add_model(self, model: str = "m", **script: Any) -> None:
        """Put the stand-in library and a model of this script where the documentation says."""
        state = self.machine.directory / "var/lib/rkserve"
        build("1.3.1", into=state / "runtimes" / "1.3.1")
        write_model(state / "models" / model / "m.rkllm", **script)
        self.machine.run("chown -R rkserve: /var/lib/rkserve")
        self.write_models({model: {}})

    def write_models(self, models: dict[str, dict[str, Any]]) -> None:
        """Write /etc/rkserve/models.yaml with these models, each with keys of its own."""
        plain = {
            "backend": "rkllm", "file": "m.rkllm", "runtime": "==1.3.1", "template": "chatml",
            "eos": ["<|im_end|>"], "context_length": 2048, "memory_mb": 100, "license": {"id": "Apache-2.0"},
        }  # fmt: skip
        entries = {name: plain | keys for name, keys in models.items()}
        text = yaml.safe_dump({"version": 1, "models": entries})
        (self.machine.directory / "etc/rkserve/models.yaml").write_text(text)

    def ask(self, text: str = "Hi", model: str = "m") -> str:
        """Return the command of a streamed chat."""
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}
        headers = f"-H 'authorization: Bearer {self.key}' -H 'content-type: application/json'"
        curl = "curl --silent --show-error --no-buffer --max-time 60"
        return f"{curl} {headers} {URL}/v1/chat/completions -d '{json.dumps(body)}'"

    def says(self, text: str = "Hi", model: str = "m") -> str:
        """Return the text of an answer. AssertionError for anything but a whole one."""
        return said_in(self.machine.run(self.ask(text, model)))

    def healthy(self) -> bool:
        """Whether the server answers."""
        return self.machine.tried(f"curl --silent --fail --max-time 5 {URL}/health", 20).returncode == 0

    def wait(self) -> None:
        """Wait until the server answers."""
        until(self.healthy, START_S, "an answer of /health")

    def pid(self) -> int:
        """Return the server's process id on the machine, 0 while there is none."""
        return int(self.machine.show("MainPID") or 0)

    def processes(self) -> list[str]:
        """Return the processes of the service's user."""
        return self.machine.tried("ps -u rkserve -o pid=,args=").stdout.splitlines()

    def worker(self) -> int:
        """Return the process id of the one worker, once others that are just ending have gone."""
        until(lambda: len(self.workers()) == 1, 30, "a single worker")
        return self.workers()[0]

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        return [int(line.split()[0]) for line in self.processes() if "backends.worker" in line]


def said_in(stream: str) -> str:
    """Return the text of a stream that has come to its end."""
    assert stream.rstrip().endswith("data: [DONE]"), stream
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])

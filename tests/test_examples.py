"""The examples of the pages, run as they stand against the demo model; only the port is another."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.test_node import NODE, install
from tests.serving import running_server

ROOT = Path(__file__).parent.parent
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def url(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the demo model."""
    cwd = tmp_path_factory.mktemp("examples")
    command = [sys.executable, "-P", "-m", "server.cli", "serve", "--demo"]
    with running_server(
        command,
        models_dir=demo_folder.parent,
        cwd=cwd,
        environment={"PYTHONPATH": str(ROOT)},
        ready=True,
    ) as url:
        yield url


def examples(page: str, language: str) -> list[str]:
    """The code blocks of a language in a page."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("page", ["README.md", "README.zh-TW.md", "docs/api.md"])
def test_curl(page: str, url: str, tmp_path: Path) -> None:
    commands = [
        command
        for block in examples(page, "console")
        for command in re.findall(r"^\$ (curl .*?}')$", block, re.DOTALL | re.MULTILINE)
    ]
    assert len(commands) == 1
    for command in commands:
        out = run(["bash", "-c", command.replace(ADDRESS, url)], tmp_path)
        said = "".join(re.findall(r'"content":"(.*?)"', out))
        assert said == "The capital of France is Paris."
        assert ("data: [DONE]" in out) == ('"stream": true' in command)


@pytest.mark.parametrize("page", ["README.md", "README.zh-TW.md"])
def test_python(page: str, url: str, tmp_path: Path) -> None:
    (code,) = examples(page, "python")
    assert ADDRESS in code
    (tmp_path / "example.py").write_text(code.replace(ADDRESS, url))
    assert run([sys.executable, "example.py"], tmp_path).strip()


def test_node(url: str, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node is not installed here (Debian: apt-get install nodejs npm)")
    install(npm)
    (code,) = examples("docs/api.md", "js")
    assert ADDRESS in code
    (tmp_path / "example.mjs").write_text(code.replace(ADDRESS, url))
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules", target_is_directory=True)
    assert run([node, "example.mjs"], tmp_path) == "The capital of France is Paris."

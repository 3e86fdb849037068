"""The wheel, installed as a user installs it, answers on each Python it is made for.

The quick tier does it on the Python that runs the tests, the slow tier on the others that are there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx2
import pytest

from tests.demo_model import demo_models_dir
from tests.serving import running_server

ROOT = Path(__file__).parent.parent.parent
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
QUESTION = "What is the capital of France? Answer in one sentence."


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out)
    (found,) = out.glob("*.whl")
    return found


def interpreter(version: str) -> str:
    if version == THIS:
        return sys.executable
    for name in (f"python{version}", str(Path.home() / f".pyenv/versions/{version}/bin/python")):
        found = shutil.which(name)
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    for found_path in sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")):
        return str(found_path)
    pytest.skip(f"SKIPPED: no Python {version} on this machine")


def test_the_wheel_holds_registry_and_templates(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    units = {f"server/systemd/{path.name}" for path in (ROOT / "systemd").iterdir()}
    assert {"server/models.yaml", "server/troubleshooting.md"} | units <= names
    assert any(name.startswith("server/templates/") and name.endswith(".jinja") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(v, marks=() if v == THIS else (pytest.mark.slow, pytest.mark.smoke))
        for v in ("3.11", "3.12", "3.13")
    ],
)
def test_an_installed_wheel_serves_an_answer(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    environment = tmp_path / "venv"
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert uv is not None
    run(uv, "venv", "--quiet", "--python", python, environment)
    binary = environment / "bin"
    install = [uv, "pip", "install", "--quiet", "--python", str(binary / "python")]
    locked = ["--require-hashes", "-r", "requirements/server.txt"]
    # What setting up the tests has fetched serves here too, without a network.
    if subprocess.run([*install, "--offline", *locked], cwd=ROOT, capture_output=True).returncode != 0:
        run(*install, *locked)
    run(*install, "--offline", "--no-deps", wheel)

    models = tmp_path / "models"
    models.mkdir()
    (models / "smollm2-135m").symlink_to(demo_models_dir() / "smollm2-135m", target_is_directory=True)
    with running_server([str(binary / "rkserve"), "serve"], models_dir=models, cwd=tmp_path) as url:
        answer = httpx2.post(
            f"{url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": QUESTION}], "temperature": 0},
            timeout=120,
        )
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"], json.dumps(answer.json())

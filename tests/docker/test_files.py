"""compose.yaml and .dockerignore against what they stand for: settings, the Dockerfile, the page."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.settings import PREFIX, Settings, load_settings
from tests.webui.open_webui import documented

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "docker.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile.arm64").read_text()
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
# The settings by which docs/open-webui.md spares a board work, tried there in a browser.
SPARING = {
    "ENABLE_OLLAMA_API",
    "DEFAULT_MODEL_PARAMS",
    "DEFAULT_MODEL_METADATA",
    "ENABLE_TAGS_GENERATION",
    "ENABLE_FOLLOW_UP_GENERATION",
    "ENABLE_RETRIEVAL_QUERY_GENERATION",
    "OPENAI_API_CONFIGS",
}
STOP_S = 10  # what `docker stop` waits for by default


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    composed: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    volumes = set(composed["volumes"])
    for service in composed["services"].values():
        named = {volume.split(":")[0] for volume in service["volumes"] if volume[0] != "/"}
        assert named <= volumes
    services: dict[str, Any] = composed["services"]
    return services


def test_answers_may_end_before_the_container_is_killed(services: dict[str, Any]) -> None:
    grace = Settings().shutdown_grace_s
    assert int(services["rkserve"]["stop_grace_period"].rstrip("s")) >= grace + 2
    assert grace < STOP_S


def test_the_settings_of_both_files_are_settings(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = dict(re.findall(r"(RKSERVE_\w+)=(\S+)", DOCKERFILE))
    assert image == {"RKSERVE_HOST": "0.0.0.0"}
    for name, value in {**image, **services["rkserve"]["environment"]}.items():
        assert name.startswith(PREFIX)
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:-(.*)\}", r"\1", value))
    assert load_settings(env_file=None).reachable


def test_state_is_where_the_image_keeps_it(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in re.findall(r"(XDG_\w+)=(\S+)", DOCKERFILE):
        monkeypatch.setenv(name, value)
    settings = load_settings(env_file=None)
    (volume,) = re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    assert f"rkserve:{volume}" in services["rkserve"]["volumes"]
    assert settings.models_dir == Path(volume) / "models"
    assert settings.api_keys_file == Path(volume) / "keys"
    assert settings.runtime_dirs[:2] == (Path(volume) / "runtimes", Path("/usr/local/lib"))


def test_open_webui_is_told_where_and_how_much(services: dict[str, Any]) -> None:
    rkserve, webui = services["rkserve"], services["open-webui"]
    inside = rkserve["ports"][0].split(":")[1]
    assert f"EXPOSE {inside}" in DOCKERFILE
    assert webui["environment"]["OPENAI_API_BASE_URL"] == f"http://rkserve:{inside}/v1"
    assert all(isinstance(value, str) for value in webui["environment"].values())
    own = {"OPENAI_API_BASE_URL", "OPENAI_API_KEY"}
    tried = {name: value for name, value in documented().items() if name in SPARING}
    assert {name: value for name, value in webui["environment"].items() if name not in own} == tried
    command = re.findall(r"docker run (.*?)\n```", QUICKSTART, re.DOTALL)[0].replace("\\\n", " ")
    typed = dict(word.split("=", 1) for word in shlex.split(command) if re.match(r"[A-Z_]+=", word))
    assert {name: value for name, value in typed.items() if name not in own | {"PORT"}} == tried
    assert (
        json.loads(webui["environment"]["DEFAULT_MODEL_METADATA"])["capabilities"]["builtin_tools"] is False
    )
    assert json.loads(webui["environment"]["DEFAULT_MODEL_PARAMS"])["function_calling"] == "legacy"


def test_what_compose_grants_stands_in_the_page(services: dict[str, Any]) -> None:
    rkserve = services["rkserve"]
    for device in rkserve["devices"]:
        assert f"--device {device}" in PAGE
    for option in rkserve["security_opt"]:
        assert f"--security-opt {option.removesuffix(':true')}" in PAGE
    assert (rkserve["cap_drop"], rkserve["read_only"], rkserve["tmpfs"]) == (["ALL"], True, ["/tmp"])
    assert not {"privileged", "user", "cap_add", "network_mode"} & set(rkserve)


def copied() -> list[str]:
    """The files and directories of this repository that the Dockerfile copies."""
    found = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    return [source.rstrip("/") for sources in found for source in sources.split()]


def test_only_what_the_dockerfile_copies_is_sent_to_the_build() -> None:
    let_in = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for source in copied():
        assert any(source == place or source.startswith(f"{place}/") for place in let_in), source
    for place in let_in:
        assert any(source == place or source.startswith(f"{place}/") for source in copied()), place


def test_what_it_copies_is_enough_for_the_wheel(tmp_path: Path) -> None:
    for source in copied():
        target = tmp_path / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target)
        else:
            shutil.copy(ROOT / source, target)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "dist").glob("*.whl"))) == 1

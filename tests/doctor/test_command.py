"""`rkserve doctor` as a person and as a script run it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from tests.demo_model import demo_models_dir
from tests.doctor.machines import AS_BOUGHT, OLD_DRIVER, PC, ROCK_5C
from tests.doctor.test_checks import House, needs_root
from tests.rkllm.board import Board
from tests.server.cli.command import COMMAND, environment, rkserve
from tests.server.cli.terminal import on_a_terminal, read_to_the_end
from tests.serving import free_port


def test_a_machine_without_an_npu(tmp_path: Path) -> None:
    """The demo model answers there, so nothing is wrong."""
    done = rkserve(
        "doctor", "--models-dir", str(demo_models_dir()), home=tmp_path,
        RKSERVE_SYSROOT=str(PC.write(tmp_path / "root")), RKSERVE_PORT=str(free_port()),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("board ")
    assert " BAD " not in done.stdout
    assert "installed: smollm2-135m" in done.stdout
    assert "as the model's own template: smollm2-135m" in done.stdout or "smollm2-135m (model)" in done.stdout
    assert "nothing is wrong" in done.stderr.splitlines()[-1]
    assert "NPU driver" in done.stderr


@needs_root
def test_what_is_wrong_has_a_cure_a_page_and_an_exit_code(tmp_path: Path) -> None:
    house = House(tmp_path, OLD_DRIVER, good={})
    house.runtime()
    variables = {
        "RKSERVE_SYSROOT": str(house.sysroot), "RKSERVE_MODELS_DIR": str(house.models),
        "RKSERVE_MODELS_FILE": str(tmp_path / "models.yaml"), "RKSERVE_PORT": str(free_port()),
    }  # fmt: skip
    done = rkserve("doctor", home=tmp_path, **variables)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("NPU driver"))
    assert lines[at].split()[2] == "BAD" and "0.9.6 in /sys/module/rknpu/version" in lines[at]
    assert lines[at + 1].strip().startswith("-> install the newest kernel")
    assert lines[at + 2].strip() == "docs/troubleshooting.md#the-npu-driver-is-too-old"
    assert done.stderr.splitlines()[-1] == "rkserve: 1 is wrong, 2 could be better"
    script = rkserve("doctor", "--json", home=tmp_path, **variables)
    document = json.loads(script.stdout)
    assert (script.returncode, document["ok"], script.stderr) == (1, False, "")
    (bad,) = [row for row in document["findings"] if row["status"] == "bad"]
    assert set(bad) == {"check", "status", "why", "mend", "see"}
    assert bad["check"] == "NPU driver"
    assert bad["see"] == "docs/troubleshooting.md#the-npu-driver-is-too-old"


def test_a_models_file_that_is_refused_is_one_row_of_many(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nmodels: {x: {backend: rkllm, fiel: m.rkllm}}\n")
    done = rkserve(
        "doctor", "--json", "--models-file", "mine.yaml", home=tmp_path,
        RKSERVE_SYSROOT=str(PC.write(tmp_path / "root")), RKSERVE_PORT=str(free_port()),
    )  # fmt: skip
    assert done.returncode == 1
    findings = json.loads(done.stdout)["findings"]
    (bad,) = [row for row in findings if row["status"] == "bad"]
    assert bad["check"] == "models.yaml" and "mine.yaml:2" in bad["why"]
    assert {"board", "memory", "disk", "port"} <= {row["check"] for row in findings}


def test_the_server_that_runs_is_recognised(tmp_path: Path) -> None:
    board = Board(tmp_path / "board")
    with board.serve() as server:
        port = server.url.rpartition(":")[2]
        done = rkserve("doctor", "--json", home=tmp_path, RKSERVE_PORT=port)
        rows = {row["check"]: row for row in json.loads(done.stdout)["findings"]}
        assert rows["port"]["why"] == f"rkserve is running at 127.0.0.1 port {port}"


def test_a_section_is_read_without_a_network(tmp_path: Path) -> None:
    for name in ("the-npu-driver-is-too-old", "docs/troubleshooting.md#the-npu-driver-is-too-old"):
        done = rkserve("doctor", "--explain", name, home=tmp_path)
        assert done.returncode == 0
        assert done.stdout.startswith("### The NPU driver is too old\n")
        assert "rsetup" in done.stdout and done.stdout.count("#") == 3
    done = rkserve("doctor", "--explain", "too-old", home=tmp_path)
    assert done.returncode == 2 and "the-npu-driver-is-too-old" in done.stderr


def test_what_verify_has_found_stands_in_the_table(tmp_path: Path) -> None:
    house = House(tmp_path, PC, good={"sha256": hashlib.sha256(b"x" * 1000).hexdigest()})
    variables = {
        "RKSERVE_SYSROOT": str(house.sysroot), "RKSERVE_MODELS_DIR": str(house.models),
        "RKSERVE_MODELS_FILE": str(tmp_path / "models.yaml"), "RKSERVE_PORT": str(free_port()),
    }  # fmt: skip

    def row() -> dict[str, str]:
        done = rkserve("doctor", "--json", home=tmp_path, **variables)
        rows: list[dict[str, str]] = json.loads(done.stdout)["findings"]
        return {row["check"]: row for row in rows}["model files"]

    assert row()["mend"].startswith("rkserve verify good")
    assert rkserve("verify", "good", home=tmp_path, **variables).returncode == 0
    assert row()["status"] == "ok"
    (house.models / "good" / "m.rkllm").write_bytes(b"x" * 999 + b"y")
    assert row()["mend"].startswith("rkserve verify good")
    assert rkserve("verify", "good", home=tmp_path, **variables).returncode == 1
    damaged = row()
    assert damaged["status"] == "bad" and "m.rkllm is damaged" in damaged["why"]


@needs_root
def test_in_a_narrow_terminal_words_are_wrapped_and_commands_are_not(tmp_path: Path) -> None:
    """What a terminal wraps by itself is one line again when it is copied."""
    root = AS_BOUGHT.write(tmp_path / "root")
    port = str(free_port())
    variables = environment(tmp_path, RKSERVE_SYSROOT=str(root), RKSERVE_PORT=port, COLUMNS="60")
    process, ours = on_a_terminal([*COMMAND, "doctor"], tmp_path, variables)
    shown = read_to_the_end(ours).decode().replace("\r\n", "\n")
    assert process.wait(60) == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    (command,) = [line for line in lines if "echo performance" in line]
    assert command == (
        "    -> echo performance | sudo tee /sys/class/devfreq/fdab0000.npu/governor "
        "/sys/class/devfreq/dmc/governor /sys/devices/system/cpu/cpufreq/policy*/scaling_governor "
        "(until the next boot)"
    )
    others = [line for line in lines if not line.startswith(("    ->", "       docs/", "rkserve:"))]
    assert max(map(len, others)) <= 60
    assert [line for line in others if line != line.rstrip()] == []
    assert "\x1b[33madvice" in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_nothing_is_changed(tmp_path: Path) -> None:
    root = ROCK_5C.write(tmp_path / "root")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in root.rglob("*")}
    rkserve("doctor", home=tmp_path, RKSERVE_SYSROOT=str(root), RKSERVE_PORT=str(free_port()))
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in root.rglob("*")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]

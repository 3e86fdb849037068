"""The table of models, for people and for scripts."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.server.cli.command import COMMAND, environment, models_dir, rkserve


def install(home: Path) -> None:
    folder = models_dir(home) / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "meta2.json").write_bytes(b"{}")
    (folder / "embedding.npy").write_bytes(bytes(3_400_000))


def test_json_says_everything(tmp_path: Path) -> None:
    install(tmp_path)
    done = rkserve("models", "--json", home=tmp_path)
    rows = {row["id"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 0 and len(rows) == 10
    demo = rows["smollm2-135m"]
    assert (demo["installed"], demo["size_mb"]) == (True, 3)
    assert demo["runtime"] == f"onnxruntime {version('onnxruntime')}"
    assert rows["minicpm5-2b"] == {
        "id": "minicpm5-2b",
        "installed": False,
        "verified": None,
        "runtime": None,
        "size_mb": None,
        "memory_mb": 2500,
        "license": "Apache-2.0",
        "notice": "The weights were modified (quantized to w8a8 for RK3588).",
        "attribution": None,
        "score": 6.0,
        "tokens_per_s": 10.9,
        "remark": "best value; mixes simplified Chinese in",
        "details": {},
        "warnings": [],
    }


def test_the_table_has_a_line_for_each_when_it_is_piped(tmp_path: Path) -> None:
    install(tmp_path)
    done = rkserve("models", home=tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == 11
    headers = ["ID", "INSTALLED", "VERIFIED", "RUNTIME", "SIZE", "MEMORY", "SCORE", "TOK/S", "LICENCE"]
    headers.append("REMARK")
    assert lines[0].split() == headers
    assert lines[1].split()[:8] == ["minicpm5-2b", "-", "-", "-", "-", "2.5", "GB", "6"]
    runtime = ["onnxruntime", version("onnxruntime")]
    assert lines[9].split()[:7] == ["smollm2-135m", "yes", "-", *runtime, "3", "MB"]
    assert "\x1b" not in done.stdout
    assert lines == [line.rstrip() for line in lines]
    notice = "The weights were modified (quantized, then converted for this engine)."
    assert lines[10].split()[:7] == ["smollm2-135m-fp32", "yes", "-", *runtime, "3", "MB"]
    assert done.stderr == (
        f"rkserve: smollm2-135m, Apache-2.0: {notice}\nrkserve: smollm2-135m-fp32, Apache-2.0: {notice}\n"
    )


def test_with_nothing_installed_it_says_how_to_get_a_model(tmp_path: Path) -> None:
    done = rkserve("models", home=tmp_path)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 11)
    assert done.stderr == (
        f"rkserve: none is installed in {models_dir(tmp_path)}, which does not exist; "
        "rkserve pull smollm2-135m fetches the demo model\n"
    )
    models_dir(tmp_path).mkdir(parents=True)
    done = rkserve("models", home=tmp_path)
    assert f"none is installed in {models_dir(tmp_path)}; rkserve pull" in done.stderr


def on_a_terminal(home: Path, width: int) -> list[str]:
    """Return what `rkserve models` prints on a terminal of this width, without its colours."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "models"],
        cwd=home,
        env=environment(home, COLUMNS=str(width), TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # EIO: the other side is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()


@pytest.mark.parametrize(
    ("width", "headers"),
    [
        (45, ["ID", "INSTALLED", "SIZE", "MEMORY"]),
        (90, ["ID", "INSTALLED", "VERIFIED", "SIZE", "MEMORY", "SCORE", "TOK/S", "LICENCE"]),
        (120, ["ID", "INSTALLED", "VERIFIED", "RUNTIME", "SIZE", "MEMORY", "SCORE", "TOK/S", "LICENCE"]),
        (
            170,
            [
                *("ID", "INSTALLED", "VERIFIED", "RUNTIME", "SIZE", "MEMORY"),
                *("SCORE", "TOK/S", "LICENCE", "REMARK"),
            ],
        ),
    ],
)
def test_a_terminal_gets_a_line_a_model_and_the_columns_it_has_room_for(
    width: int, headers: list[str], tmp_path: Path
) -> None:
    install(tmp_path)
    lines = on_a_terminal(tmp_path, width)
    assert lines[0].split() == headers
    assert len(lines) == 11
    assert all(len(line.rstrip()) <= width for line in lines), lines
    ids = [row["id"] for row in json.loads(rkserve("models", "--json", home=tmp_path).stdout)]
    assert [line.split()[0] for line in lines[1:]] == ids


def test_a_template_that_cannot_be_read_is_named_with_its_line_in_models_yaml(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "version: 1\nmodels:\n  mine:\n    backend: hybrid\n    folder: .\n    template: my.jinja\n"
        "    context_length: 64\n    memory_mb: 1\n    license: {id: MIT}\n"
    )
    folder = models_dir(tmp_path) / "mine"
    folder.mkdir(parents=True)
    (folder / "meta2.json").write_bytes(b"{}")
    done = rkserve("models", "--models-file", str(file), home=tmp_path)
    assert done.returncode == 0
    assert f"mine: {file}:6: models.mine.template: {folder}/my.jinja: the template" in done.stderr
    (folder / "my.jinja").write_text("{% if %}")
    done = rkserve("models", "--json", "--models-file", str(file), home=tmp_path)
    (row,) = [row for row in json.loads(done.stdout) if row["id"] == "mine"]
    (warning,) = row["warnings"]
    assert warning.startswith(f"{file}:6: models.mine.template: {folder}/my.jinja, line 1: ")

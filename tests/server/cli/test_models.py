"""The table of models, for people and for scripts."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from tests.server.cli.command import models_dir, rkserve


def install(home: Path) -> None:
    folder = models_dir(home) / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "meta2.json").write_bytes(b"{}")
    (folder / "embedding.npy").write_bytes(bytes(3_400_000))


def test_json_says_everything(tmp_path: Path) -> None:
    install(tmp_path)
    done = rkserve("models", "--json", home=tmp_path)
    rows = {row["id"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 0 and len(rows) == 9
    demo = rows["smollm2-135m"]
    assert (demo["installed"], demo["size_mb"]) == (True, 3)
    assert demo["runtime"] == f"onnxruntime {version('onnxruntime')}"
    assert rows["minicpm5-2b"] == {
        "id": "minicpm5-2b",
        "installed": False,
        "runtime": None,
        "size_mb": None,
        "memory_mb": 2500,
        "license": "Apache-2.0",
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
    assert len(lines) == 10
    headers = ["ID", "INSTALLED", "RUNTIME", "SIZE", "MEMORY", "SCORE", "TOK/S", "LICENCE", "REMARK"]
    assert lines[0].split() == headers
    assert lines[1].split()[:8] == ["minicpm5-2b", "-", "-", "-", "2.5", "GB", "6", "10.9"]
    runtime = ["onnxruntime", version("onnxruntime")]
    assert lines[9].split()[:6] == ["smollm2-135m", "yes", *runtime, "3", "MB"]
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_with_nothing_installed_it_says_how_to_get_a_model(tmp_path: Path) -> None:
    done = rkserve("models", home=tmp_path)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 10)
    assert done.stderr == (
        f"rkserve: none is installed in {models_dir(tmp_path)}; "
        "rkserve pull smollm2-135m fetches the demo model\n"
    )


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

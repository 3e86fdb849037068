"""rkserve where: the files the other commands really use."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.cli.command import models_dir, rkserve


def test_it_shows_the_files_the_other_commands_use(tmp_path: Path) -> None:
    rkserve("key", "add", "a", home=tmp_path)
    own = tmp_path / "own.yaml"
    own.write_text("version: 1\nmodels: {}\n")
    done = rkserve("where", "--json", home=tmp_path, RKSERVE_MODELS_FILE=str(own))
    places = {place["what"]: place for place in json.loads(done.stdout)}
    keys = tmp_path / "config" / "rkserve" / "keys"
    assert places["API keys"] == {"what": "API keys", "path": str(keys), "exists": True, "set_by": None}
    assert places["models' files"]["path"] == str(models_dir(tmp_path))
    assert places["models' files"]["exists"] is False
    assert places["your models.yaml"]["set_by"] == f"RKSERVE_MODELS_FILE={own}"


def test_a_person_gets_a_line_each_whatever_the_width(tmp_path: Path) -> None:
    done = rkserve("where", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"models' files            {models_dir(tmp_path)}  (not there)\n" in done.stdout

""".ci/run on machines that lack something, with stand-ins for the programs it calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
PROGRAMS = ("make", "gcc", "g++", "node", "npm")


def run(tree: Path, *, lacks: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run the script where these programs are missing and no package can be installed."""
    programs, python = tree / "bin", tree / ".venv" / "bin" / "python"
    for directory in (programs, python.parent, tree / ".ci"):
        directory.mkdir(parents=True)
    shutil.copy(SCRIPT, tree / ".ci" / "run")
    os.symlink(shutil.which("dirname") or "", programs / "dirname")
    stands_in = {programs / name: "true" for name in PROGRAMS if name not in lacks}
    for path, does in {**stands_in, python: "true", programs / "apt-get": "exit 100"}.items():
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)
    return subprocess.run(
        [shutil.which("bash") or "bash", tree / ".ci" / "run"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_with_everything_there_nothing_is_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, lacks=())
    assert (done.returncode, done.stderr) == (0, "")
    assert "SKIPPED" not in done.stdout


def test_without_node_its_tests_are_skipped_and_the_others_run(tmp_path: Path) -> None:
    done = run(tmp_path, lacks=("node", "npm"))
    assert done.returncode == 0
    skipped = [line for line in done.stdout.splitlines() if "SKIPPED" in line]
    assert ["no node, and the package nodejs" in skipped[0], "no npm" in skipped[1]] == [True, True]
    assert "ci: a smoke of the slow layers" in done.stdout


@pytest.mark.parametrize("lacking", ["make", "gcc", "g++"])
def test_what_every_test_needs_is_named_when_it_is_missing(lacking: str, tmp_path: Path) -> None:
    done = run(tmp_path, lacks=(lacking,))
    assert done.returncode == 1
    assert f"ci: FAILED: there is no {lacking}" in done.stderr
    assert "smoke" not in done.stdout

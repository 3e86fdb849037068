"""rknn-toolkit2 itself, in the environment the command makes, on the demo model and small ones."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.hybrid.folder import read_folder, verify_files
from backends.hybrid.meta import Build
from convert.hf import convert_hf
from convert.rknn.environment import default_environment
from tests.convert.checkpoints import write_checkpoint
from tests.demo_model import MODEL, demo_models_dir
from tests.locks import held
from tests.oracle.architectures import models
from tests.serving import clean_environment

ROOT = Path(__file__).parents[3]
BUILD_S = 1800


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_S + 60),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="rknn-toolkit2 needs x86-64"),
]


def test_the_demo_model_gives_the_same_answers_in_the_simulator(tmp_path: Path) -> None:
    folder = tmp_path / MODEL
    shutil.copytree(demo_models_dir() / MODEL, folder, copy_function=_linked)
    assert len(_built(folder)) == 31


@pytest.mark.parametrize("name", ["lfm3", "kanana2", "gemma3_large"])
def test_conv_layers_gates_windows_and_a_scaled_stream_are_built(name: str, tmp_path: Path) -> None:
    folder = convert_hf(
        write_checkpoint(tmp_path / name, models()[name]), tmp_path / "folder", lengths=(1, 8)
    )
    _built(folder)


def _built(folder: Path) -> Sequence[Build]:
    """Build a folder, comparing 16 tokens of three prompts, and return its builds."""
    environment = default_environment()  # kept for later runs
    with held(environment.parent / "rknn-toolkit2.lock"):
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "server.cli", "convert", "rknn", str(folder)),
                *("--target", "rk3588", "--env", str(environment), "--tokens", "16"),
            ],
            cwd=folder.parent,
            env=clean_environment(PYTHONPATH=str(ROOT)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(": 48 of 48")
    assert verify_files(folder) == []
    read = read_folder(folder, executor="rknn")
    assert "48 of 48 greedy tokens the same" in read.meta.source["rknn"]
    for build in read.builds:
        assert build.toolkit == "2.5.0" and build.cosine is not None and build.cosine > 0.9999
        assert b"RKNN" in (folder / build.file).read_bytes()[:64]
    return read.builds


def _linked(source: str, target: str) -> str:
    """Link a file, as large ones are; what is changed in the copy is replaced, never written into."""
    Path(target).hardlink_to(source)
    return target

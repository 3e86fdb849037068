"""The stand-in, a folder for it, its log, and the way to its faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.standin.rknn.build import build
from tests.standin.rknn.model_file import add_rknn_builds
from tests.tiny import tiny_folder


@pytest.fixture(scope="session")
def library() -> Path:
    return build()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_rknn_builds(tiny_folder(tmp_path_factory.mktemp("tiny"), layers=2, tied_lm_head=False))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv("RKNN_STANDIN_LOG", str(path))
    return path

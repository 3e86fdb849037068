"""A small random model on the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.engine import Backend
from tests.backends.hybrid.asking import open_model
from tests.tiny import tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Not tied: a random model that shares its embedding with its head mostly repeats the last token.
    return tiny_folder(tmp_path_factory.mktemp("tiny"), tied_lm_head=False)


@pytest.fixture
def model(folder: Path) -> Backend:
    return open_model(folder)

"""Fixtures that tests of several folders share."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.demo_model import MODEL, demo_models_dir

# Before any test imports numpy: it sets how many threads numpy may use, as in a worker.
import_module("backends.hybrid")


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The hybrid folder of the demo model, made by the product's own pull. Read only."""
    return demo_models_dir() / MODEL

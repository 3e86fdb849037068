"""Open WebUI on rkserve, started once for the tests of each of its two sets of settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webui.open_webui import documented
from tests.webui.rig import EMBEDDER, Rig, running_rig
from tests.webui.setup import CannotSetUp, prepare


@pytest.fixture(scope="package", autouse=True)
def _set_up() -> None:
    try:
        prepare()
    except CannotSetUp as reason:
        pytest.skip(f"SKIPPED: {reason}")


@pytest.fixture(scope="module")
def tamed(_set_up: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """With the settings that docs/open-webui.md gives."""
    with running_rig(
        tmp_path_factory.mktemp("tamed"), {**documented(), "RAG_EMBEDDING_MODEL": EMBEDDER}
    ) as rig:
        yield rig


@pytest.fixture(scope="module")
def untamed(_set_up: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """With Open WebUI's own settings."""
    with running_rig(tmp_path_factory.mktemp("untamed")) as rig:
        yield rig


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of the page go: WEBUI_PICTURES=docs/pictures renews those of the documentation."""
    named = os.environ.get("WEBUI_PICTURES")
    return Path(named).absolute() if named else tmp_path_factory.mktemp("pictures")

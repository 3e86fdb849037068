from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.hub_server import Hub, running_hub
from tests.store.little import (
    BASE,
    CONFIG,
    CONTENT,
    REPO,
    TOKENIZER,
)


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with a model, and the model it was made of."""
    with running_hub() as running:
        running.repos = {
            REPO: {"Little_w8a8.rkllm": CONTENT, "LICENSE": b"Do good.\n", "README.md": b"# Little"},
            BASE: {"tokenizer.json": TOKENIZER, "tokenizer_config.json": CONFIG, "NOTICE": b"By us.\n"},
        }
        yield running

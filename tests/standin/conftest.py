"""What the stand-in's tests share: the built library, a model file, a call log."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standin.rkllm.build import build
from tests.standin.rkllm.model_file import write_model
from tests.standin.rkllm_client import Client


@pytest.fixture(scope="session")
def library() -> Path:
    return build()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv("RKLLM_STANDIN_LOG", str(path))
    return path


Load = Callable[..., Client]


@pytest.fixture
def load(library: Path, tmp_path: Path, log: Path) -> Iterator[Load]:
    """A client of a model with this script, without the runtime's own template. `init`: for Client.init."""

    clients: list[Client] = []

    def start(
        init: dict[str, Any] | None = None, *, batch: int = 1, template: bool = False, **script: Any
    ) -> Client:
        client = Client(library, batch=batch)
        clients.append(client)
        assert (
            client.init(
                write_model(tmp_path / "m.rkllm", **{"log": {"silent": True}, **script}), **(init or {})
            )
            == 0
        )
        assert client.handle.value
        if not template:
            assert client.plain_template() == 0
        return client

    yield start
    for client in clients:
        client.close()

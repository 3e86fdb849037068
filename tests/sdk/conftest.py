"""The servers, started once for all tests of the SDKs."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.sdk.servers import Endpoint, embedding_server, real_server, scripted_server


@pytest.fixture(scope="package")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """`rkserve serve` with the tiny model, which asks for a key."""
    with real_server(tmp_path_factory.mktemp("real")) as endpoint:
        yield endpoint


@pytest.fixture(scope="package")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A server whose model does what it is told."""
    with scripted_server(tmp_path_factory.mktemp("scripted")) as endpoint:
        yield endpoint


@pytest.fixture(scope="package")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A server with an embedding model."""
    with embedding_server(tmp_path_factory.mktemp("embedding")) as endpoint:
        yield endpoint


@pytest.fixture
def client(real: Endpoint) -> Iterator[openai.OpenAI]:
    """The synchronous client of the real server. It never retries, so that no failure is hidden."""
    with openai.OpenAI(base_url=real.base_url, api_key=real.key, max_retries=0, timeout=30) as made:
        yield made

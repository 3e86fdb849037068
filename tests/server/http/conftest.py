"""The server that the tests of the layers around the routes talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.server.scripted import Served, serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One server for all tests of a module, open, on the loopback."""
    async with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def served(module_server: Served) -> Served:
    """The module's server as if just started. Its tests run in the module's event loop (pytestmark)."""
    module_server.dispatcher.reset()
    return module_server

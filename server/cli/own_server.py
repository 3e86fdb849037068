"""A server for this process alone: in a thread, on a free port of the loopback, as long as a block lasts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from server.app import create_app
from server.cli.console import CommandError
from server.cli.context import registry_for
from server.logs import configure_logging
from server.settings import Settings, SettingsError

STOP_S = 15.0


@contextmanager
def own_server(settings: Settings) -> Iterator[str]:
    """Run the server until the block ends; yields its URL. Raises CommandError if it cannot be started."""
    settings = settings.model_copy(
        update={"host": "127.0.0.1", "port": 0, "api_keys_file": None, "preload": (), "shutdown_grace_s": 0.0}
    )
    configure_logging(settings.log_format, "debug" if settings.log_level == "debug" else "error")
    try:
        app = create_app(settings, registry_for(settings))
    except SettingsError as error:
        raise CommandError(str(error)) from error
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, lifespan="on", log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
        )
        server = _Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="rkserve-chat")
        thread.start()
        try:
            server.settled.wait()
            if not server.started:
                raise CommandError("the server for this chat could not be started; the lines above say why")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(STOP_S)


class _Server(uvicorn.Server):
    """Says when it has started, or failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.settled.set()

"""A server process like `rkserve serve`, but for its workers, which are those of scripted_worker."""

from __future__ import annotations

import sys

from server.app import create_app
from server.registry import load_registry
from server.scheduling import Dispatcher
from server.serving import GracefulServer, listen, server_config
from server.settings import load_settings

if __name__ == "__main__":
    settings = load_settings(env_file=None)
    registry = load_registry(settings)
    command = [sys.executable, "-P", "-m", "tests.sdk.scripted_worker"]
    app = create_app(settings, registry, dispatcher=Dispatcher(settings, registry, command))
    GracefulServer(server_config(app), settings).run(listen(settings.host, settings.port))

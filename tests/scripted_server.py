"""`rkserve serve` as a process of its own, but for its workers, which are those of a module of the tests.

The module is the argument; settings and models come from the environment, as ever.
"""

from __future__ import annotations

import sys

from server import serving
from server.app import create_app
from server.logs import configure_logging
from server.metrics.metrics import Metrics
from server.registry import load_registry
from server.scheduling import Dispatcher
from server.settings import load_settings


def command(worker_module: str) -> list[str]:
    """Return the command that runs a server with such workers; it must find the tests (PYTHONPATH)."""
    return [sys.executable, "-P", "-m", "tests.scripted_server", worker_module]


if __name__ == "__main__":
    settings = load_settings(env_file=None)
    configure_logging(settings.log_format, settings.log_level)
    registry = load_registry(settings)
    worker_command = [sys.executable, "-P", "-m", sys.argv[1]]
    counted = Metrics()
    dispatcher = Dispatcher(settings, registry, worker_command, observer=counted)
    serving.run(create_app(settings, registry, dispatcher=dispatcher, counted=counted), settings)

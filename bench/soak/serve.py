"""`rkserve serve` on a machine whose memory holds all models but one, so that they make room for one another.

How much is left is worked out from the worker processes there are: as on a board, what one takes is gone when
it is started, and there again when it has ended.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.soak.models import MEMORY_MB, MODELS
from server import serving
from server.app import create_app
from server.logs import configure_logging
from server.metrics.metrics import Metrics
from server.registry import load_registry
from server.scheduling import Dispatcher
from server.settings import load_settings


def available_mb(reserve_mb: int) -> int:
    """Return the memory that programs can still get on such a machine."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    living = sum(_lives(child) for child in children)
    return reserve_mb + MEMORY_MB * (len(MODELS) - 1 - living)


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> None:
    """Serve until a signal ends it. Settings and models come from the environment, as ever."""
    settings = load_settings(env_file=None)
    configure_logging(settings.log_format, settings.log_level)
    registry = load_registry(settings)
    counted = Metrics(entry.id for entry in registry.installed())
    dispatcher = Dispatcher(
        settings, registry, observer=counted, available=lambda: available_mb(settings.memory_reserve_mb)
    )
    serving.run(create_app(settings, registry, dispatcher=dispatcher, counted=counted), settings)


if __name__ == "__main__":
    main()

"""The whole server, as `rkserve serve` runs it, with one model that bench.replay_worker plays.

Run it as `python -m bench.replay_server PORT`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.processes import python
from bench.replay import CONTEXT_LENGTH
from server.app import create_app
from server.logs import configure_logging
from server.metrics.metrics import Metrics
from server.registry import Entry, Registry
from server.scheduling import Dispatcher
from server.serving import GracefulServer, listen, server_config
from server.settings import Settings

MODEL = "replay"


def main(port: int, models_dir: Path) -> None:
    """Serve until a signal ends it. `models_dir` gets what makes the model count as installed."""
    settings = Settings(port=port, models_dir=models_dir, preload=(MODEL,), log_level="warning")
    entry = Entry.model_validate(
        {
            "id": MODEL,
            "backend": "hybrid",
            "folder": ".",
            "template": "chatml",
            "context_length": CONTEXT_LENGTH,
            "max_tokens": CONTEXT_LENGTH,
            "memory_mb": 1,
            "license": {"id": "Apache-2.0"},
        }
    )
    entry.path(models_dir).mkdir(parents=True)
    (entry.path(models_dir) / "meta2.json").write_text("{}")
    registry = Registry({MODEL: entry}, models_dir)
    configure_logging(settings.log_format, settings.log_level)
    counted = Metrics()
    dispatcher = Dispatcher(
        settings, registry, worker_command=python("-m", "bench.replay_worker"), observer=counted
    )
    app = create_app(settings, registry, dispatcher=dispatcher, counted=counted)
    GracefulServer(server_config(app), settings).run(listen(settings.host, settings.port))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="rkserve-bench-") as directory:
        main(int(sys.argv[1]), Path(directory))

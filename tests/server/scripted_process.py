"""`rkserve serve` as a process of its own, but for its workers, which do what a message tells them.

The commands are those of tests.server.workers.scripted. Settings come from the environment.
"""

from __future__ import annotations

from pathlib import Path

from server import serving
from server.app import create_app
from server.registry import Entry, Registry
from server.scheduling import Dispatcher
from server.settings import load_settings
from tests.server.scripted import entry, install
from tests.server.workers.harness import WORKER_COMMAND

TEMPLATE = "{{ messages[-1].content }}"


def obedient(models_dir: Path) -> Entry:
    """Install a model whose prompt is the last message and nothing else."""
    template = models_dir / "only-the-message.jinja"
    model = entry("obedient", template=str(template), context_length=100_000)
    if not model.installed(models_dir):
        install(model, models_dir)
        template.write_text(TEMPLATE)
    return model


if __name__ == "__main__":
    settings = load_settings(env_file=None)
    model = obedient(settings.models_dir)
    registry = Registry({model.id: model}, settings.models_dir)
    app = create_app(settings, registry, dispatcher=Dispatcher(settings, registry, WORKER_COMMAND))
    serving.run(app, settings)

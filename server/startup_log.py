"""What the log says of models.yaml and the settings when they have been read, at start and after a reload."""

from __future__ import annotations

import logging

from server.registry import Registry, without_effect
from server.settings import Settings
from server.templates import Templates

_log = logging.getLogger(__name__)


def log_problems(settings: Settings, registry: Registry, templates: Templates) -> None:
    """Log what is set to no avail, what is missing, and which models are not served for their template."""
    for line in (*settings.without_effect(), *registry.missing()):
        _log.warning("%s", line)
    for entry in registry.installed():
        if (problem := templates.problem(entry)) is not None:
            _log.error("%s", registry.located(entry, "template", f"{entry.id} is not served. {problem}"))
        for key, message in without_effect(entry):
            _log.warning("%s", registry.located(entry, key, f"{entry.id}: {message}"))

"""A load that ends because the server stops: noted where the next one would take it for a failed attempt."""

from __future__ import annotations

import contextlib
from pathlib import Path

from backends.spec import STOPPED_FILE, ModelSpec


def note_stopped_load(spec: ModelSpec) -> None:
    """Leave a note for the next load. Call before the worker is ended.

    Only a prompt cache needs one: what ended its making is not tried again. Where there is no directory for
    it yet, or none that can be written to, nothing was tried.
    """
    if spec.rkllm.prompt_cache is not None:
        with contextlib.suppress(OSError):
            (Path(spec.rkllm.prompt_cache.directory) / STOPPED_FILE).touch()

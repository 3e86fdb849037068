"""How the server stands, in one line for `systemctl status`. Pure but for asking the dispatcher."""

from __future__ import annotations

from server.registry import Registry
from server.scheduling import Dispatcher


def status_line(registry: Registry, dispatcher: Dispatcher) -> str:
    """Return which models are loaded and how many requests wait, such as "loaded: qwen; waiting: 2"."""
    states = [dispatcher.status_of(entry) for entry in registry.entries.values() if entry.adapter is None]
    loaded = [state.id for state in states if state.loaded]
    loading = [state.id for state in states if state.loading]
    failed = [state.id for state in states if state.error is not None and not state.loaded]
    waiting = sum(state.waiting for state in states)
    parts = [f"loaded: {', '.join(loaded)}"] if loaded else []
    parts += [f"loading: {', '.join(loading)}"] if loading else []
    parts += [f"failed: {', '.join(failed)}"] if failed else []
    parts += [f"waiting: {waiting}"] if waiting else []
    return "; ".join(parts) or "no model is loaded"

"""Which requests an entry's side model takes: those for a chat's title and tags, as the client calls them.

A client says in a header what a request is for. The prompt is no sign: users word it as they like. Pure.
"""

from __future__ import annotations

TASK_HEADER = "x-rkserve-task"

_SIDE_TASKS = frozenset({"title_generation", "tags_generation"})


def is_side_task(task: str) -> bool:
    """Return whether a request for this is a side model's. The words are Open WebUI's."""
    return task.strip().lower() in _SIDE_TASKS

"""The real worker process with the replay backend in it: `python -m bench.replay_worker --fd N`."""

from __future__ import annotations

from backends import worker
from backends.engine import Backend, Progress
from backends.spec import ModelSpec
from bench.replay import ReplayBackend


def load(spec: ModelSpec, progress: Progress) -> Backend:
    """Return the backend; there is nothing to load."""
    return ReplayBackend()


if __name__ == "__main__":
    worker.main(load=load)

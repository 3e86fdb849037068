"""Whose turn it is: the queue, the NPU's turn, and the dispatcher that gives jobs to workers."""

from server.scheduling.dispatcher import DEFAULT_WORKER_COMMAND, Dispatcher
from server.scheduling.run import Event, Job, Queued, Run
from server.scheduling.status import ModelStatus

__all__ = ["DEFAULT_WORKER_COMMAND", "Dispatcher", "Event", "Job", "ModelStatus", "Queued", "Run"]

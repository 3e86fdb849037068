"""Which models there are, what each answers to what, and the limits they are asked under. Imports nothing."""

from __future__ import annotations

NPU_MODELS = ("first", "second", "seldom")
CPU_MODEL = "hybrid"
MODELS = (*NPU_MODELS, CPU_MODEL)
MEMORY_MB = 100  # of each
QUESTIONS = 60  # that each stand-in model has an answer of its own to
LONG = "the long one"
LONG_WORDS = 1000
LONG_US = 10_000
TOKEN_US = 1500
LOAD_MS = 200
KEYS = 20
QUEUE_SIZE = 64
QUEUE_PER_CLIENT = 6
MAX_BODY_MB = 1
HEARTBEAT_S = 3
IDLE_UNLOAD_S = 5


def question(number: int) -> str:
    """Return what a stand-in model is asked; no question is part of another."""
    return f"Please answer question <{number}> of mine."


def answer(model: str, number: int) -> str:
    """Return what this model answers to it, which no other answer is."""
    words = 5 + (7 * number) % 60
    return " ".join(f"{model}{number}w{word}" for word in range(words))


def key(number: int) -> str:
    """Return the number-th key."""
    return f"rk-soak-{number}"

"""The enumerations of rkllm.h 1.3, and what a result callback may return. C names without their prefixes."""

from __future__ import annotations

from enum import IntEnum


class LLMCallState(IntEnum):
    """Why a result callback is called. WAITING: a token came, but its character is not complete yet."""

    NORMAL = 0
    WAITING = 1
    FINISH = 2
    ERROR = 3


class RKLLMInputType(IntEnum):
    """Which member of RKLLMInput's union holds the prompt."""

    PROMPT = 0
    TOKEN = 1
    EMBED = 2
    MULTIMODAL = 3


class RKLLMInferMode(IntEnum):
    """What a run makes."""

    GENERATE = 0
    GET_LAST_HIDDEN_LAYER = 1
    GET_LOGITS = 2


class CallbackReturn(IntEnum):
    """What a result callback tells the library.

    PAUSE keeps the KV cache, and a later rkllm_run goes on with it. FREE_OUTPUT frees the output buffer now.
    """

    GO_ON = 0
    PAUSE = 1
    FREE_OUTPUT = 2

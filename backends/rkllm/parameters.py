"""Options and prompts as the library's structs. Pure."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.rkllm.enums import RKLLMInputType
from backends.rkllm.multimodal import ImagePrompt, multimodal_input
from backends.rkllm.structs import RKLLMInput, RKLLMParam, RKLLMSamplingParam, RKLLMTokenInput

Prompt = Sequence[int] | str | ImagePrompt
"""What a run is given: token ids, a text, or a text with images."""


@dataclass(frozen=True)
class SessionOptions:
    """How a model is loaded. cpus: the cores for what is not done on the NPU."""

    model: Path
    context_length: int
    max_tokens: int
    base_domain_id: int = 0
    cpus: Sequence[int] = (4, 5, 6, 7)
    embed_flash: bool = True
    n_keep: int = -1
    skip_special_token: bool = False
    clear_after_abort: bool = False


def init_param(param: RKLLMParam, options: SessionOptions) -> RKLLMParam:
    """Set every field we know in the library's defaults; what is set per run is neutral here."""
    param.model_path = str(options.model).encode()
    param.max_context_len = options.context_length
    param.max_new_tokens = options.max_tokens
    param.top_k = 1
    param.n_keep = options.n_keep
    param.top_p = 1.0
    param.temperature = 1.0
    param.repeat_penalty = 1.0
    param.frequency_penalty = 0.0
    param.presence_penalty = 0.0
    param.mirostat = 0
    param.skip_special_token = options.skip_special_token
    param.ignore_eos_token = False
    param.is_async = False
    extend = param.extend_param
    extend.base_domain_id = options.base_domain_id
    extend.embed_flash = options.embed_flash
    extend.enabled_cpus_num = len(set(options.cpus))
    extend.enabled_cpus_mask = sum(1 << core for core in set(options.cpus))
    extend.n_batch = 1
    extend.use_cross_attn = 0
    return param


def neutral_sampling() -> RKLLMSamplingParam:
    """Return the values of a run whose tokens do not matter; the library may look at them all the same."""
    return RKLLMSamplingParam(
        top_k=1, top_p=1.0, temperature=1.0, repeat_penalty=1.0, mirostat_tau=5.0, mirostat_eta=0.1
    )


def run_input(prompt: Prompt) -> tuple[RKLLMInput, Any]:
    """Return the struct for a prompt, and what must live as long as it."""
    if isinstance(prompt, ImagePrompt):
        return multimodal_input(prompt)
    if isinstance(prompt, str):
        text = prompt.encode("utf-8", "replace")
        return RKLLMInput(role=b"user", input_type=RKLLMInputType.PROMPT, prompt_input=text), text
    ids = (ctypes.c_int32 * len(prompt))(*prompt)
    tokens = RKLLMTokenInput(ctypes.cast(ids, ctypes.POINTER(ctypes.c_int32)), len(prompt))
    return RKLLMInput(role=b"user", input_type=RKLLMInputType.TOKEN, token_input=tokens), ids

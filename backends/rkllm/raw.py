"""The functions of rkllm.h 1.3: their C prototypes as ctypes. Loads nothing.

`PROTOTYPES` maps a name to its result and argument types. `bind` sets them on a library that someone else
has opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import CDLL, POINTER, c_char_p, c_int, c_void_p
from typing import Any

from backends.rkllm.structs import (
    LLMHandle,
    RKLLMCallback,
    RKLLMCrossAttnParam,
    RKLLMInferParam,
    RKLLMInput,
    RKLLMLoraAdapter,
    RKLLMParam,
    RoomyParam,
)

PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    # RKLLMParam rkllm_createDefaultParam();
    "rkllm_createDefaultParam": (RoomyParam, ()),
    # int rkllm_init(LLMHandle* handle, RKLLMParam* param, RKLLMCallback* callback);
    "rkllm_init": (c_int, (POINTER(LLMHandle), POINTER(RKLLMParam), POINTER(RKLLMCallback))),
    # int rkllm_load_lora(LLMHandle handle, RKLLMLoraAdapter* lora_adapter);
    "rkllm_load_lora": (c_int, (LLMHandle, POINTER(RKLLMLoraAdapter))),
    # int rkllm_load_prompt_cache(LLMHandle handle, const char* prompt_cache_path);
    "rkllm_load_prompt_cache": (c_int, (LLMHandle, c_char_p)),
    # int rkllm_release_prompt_cache(LLMHandle handle);
    "rkllm_release_prompt_cache": (c_int, (LLMHandle,)),
    # int rkllm_destroy(LLMHandle handle);
    "rkllm_destroy": (c_int, (LLMHandle,)),
    # int rkllm_run(LLMHandle handle, RKLLMInput* rkllm_input, RKLLMInferParam* rkllm_infer_params,
    #               void* userdata);
    "rkllm_run": (c_int, (LLMHandle, POINTER(RKLLMInput), POINTER(RKLLMInferParam), c_void_p)),
    # int rkllm_run_async(LLMHandle handle, RKLLMInput* rkllm_input, RKLLMInferParam* rkllm_infer_params,
    #                     void* userdata);
    "rkllm_run_async": (c_int, (LLMHandle, POINTER(RKLLMInput), POINTER(RKLLMInferParam), c_void_p)),
    # int rkllm_abort(LLMHandle handle);
    "rkllm_abort": (c_int, (LLMHandle,)),
    # int rkllm_is_running(LLMHandle handle);
    "rkllm_is_running": (c_int, (LLMHandle,)),
    # int rkllm_clear_kv_cache(LLMHandle handle, int keep_system_prompt, int* start_pos, int* end_pos);
    "rkllm_clear_kv_cache": (c_int, (LLMHandle, c_int, POINTER(c_int), POINTER(c_int))),
    # int rkllm_get_kv_cache_size(LLMHandle handle, int* cache_sizes);
    "rkllm_get_kv_cache_size": (c_int, (LLMHandle, POINTER(c_int))),
    # int rkllm_set_chat_template(LLMHandle handle, const char* system_prompt, const char* prompt_prefix,
    #                             const char* prompt_postfix);
    "rkllm_set_chat_template": (c_int, (LLMHandle, c_char_p, c_char_p, c_char_p)),
    # int rkllm_set_function_tools(LLMHandle handle, const char* system_prompt, const char* tools,
    #                              const char* tool_response_str);
    "rkllm_set_function_tools": (c_int, (LLMHandle, c_char_p, c_char_p, c_char_p)),
    # int rkllm_set_cross_attn_params(LLMHandle handle, RKLLMCrossAttnParam* cross_attn_params);
    "rkllm_set_cross_attn_params": (c_int, (LLMHandle, POINTER(RKLLMCrossAttnParam))),
}


def bind(library: CDLL) -> None:
    """Set the types of every function that `library` has."""
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is not None:
            function.restype = result
            function.argtypes = arguments


def missing(library: CDLL, names: Iterable[str]) -> list[str]:
    """Return which of `names` the library does not have."""
    return [name for name in names if getattr(library, name, None) is None]

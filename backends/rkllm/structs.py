"""The structs of rkllm.h 1.3 and its callback types, as ctypes. The C declaration of each field beside it.

Layouts hold for LP64 (aarch64 and x86-64 agree). A wrong one does not fail, it corrupts: the tests compare
every size and offset with a table made by a C++ compiler. Pointers that the library hands out are valid only
inside the callback that gets them; pointers that it is given must live until the call returns.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar

LLMHandle = c_void_p  # typedef void* LLMHandle;


class RKLLMExtendParam(Structure):
    """Where and how a model is placed. enabled_cpus_mask: bit n is core n."""

    _fields_: ClassVar[Any] = [
        ("base_domain_id", c_int32),  # int32_t base_domain_id;
        ("embed_flash", c_int8),  # int8_t embed_flash;
        ("enabled_cpus_num", c_int8),  # int8_t enabled_cpus_num;
        ("enabled_cpus_mask", c_uint32),  # uint32_t enabled_cpus_mask;
        ("n_batch", c_uint8),  # uint8_t n_batch;
        ("use_cross_attn", c_int8),  # int8_t use_cross_attn;
        ("reserved", c_uint8 * 104),  # uint8_t reserved[104];
    ]


class RKLLMParam(Structure):
    """What rkllm_init takes."""

    _fields_: ClassVar[Any] = [
        ("model_path", c_char_p),  # const char* model_path;
        ("max_context_len", c_int32),  # int32_t max_context_len;
        ("max_new_tokens", c_int32),  # int32_t max_new_tokens;
        ("top_k", c_int32),  # int32_t top_k;
        ("n_keep", c_int32),  # int32_t n_keep;
        ("top_p", c_float),  # float top_p;
        ("temperature", c_float),  # float temperature;
        ("repeat_penalty", c_float),  # float repeat_penalty;
        ("frequency_penalty", c_float),  # float frequency_penalty;
        ("presence_penalty", c_float),  # float presence_penalty;
        ("mirostat", c_int32),  # int32_t mirostat;
        ("mirostat_tau", c_float),  # float mirostat_tau;
        ("mirostat_eta", c_float),  # float mirostat_eta;
        ("skip_special_token", c_bool),  # bool skip_special_token;
        ("ignore_eos_token", c_bool),  # bool ignore_eos_token;
        ("is_async", c_bool),  # bool is_async;
        ("extend_param", RKLLMExtendParam),  # RKLLMExtendParam extend_param;
    ]


class RKLLMLoraAdapter(Structure):
    """An adapter's file, and the name that runs ask for it by."""

    _fields_: ClassVar[Any] = [
        ("lora_adapter_path", c_char_p),  # const char* lora_adapter_path;
        ("lora_adapter_name", c_char_p),  # const char* lora_adapter_name;
        ("scale", c_float),  # float scale;
    ]


class RKLLMEmbedInput(Structure):
    """A prompt as embeddings, n_tokens rows."""

    _fields_: ClassVar[Any] = [
        ("embed", POINTER(c_float)),  # float* embed;
        ("n_tokens", c_size_t),  # size_t n_tokens;
    ]


class RKLLMTokenInput(Structure):
    """A prompt as token ids."""

    _fields_: ClassVar[Any] = [
        ("input_ids", POINTER(c_int32)),  # int32_t* input_ids;
        ("n_tokens", c_size_t),  # size_t n_tokens;
    ]


class RKLLMImageInput(Structure):
    """The images of a multimodal prompt (a struct without a name in the header)."""

    _fields_: ClassVar[Any] = [
        ("image_embed", POINTER(c_float)),  # float* image_embed;
        ("n_image_tokens", c_size_t),  # size_t n_image_tokens;
        ("n_image", c_size_t),  # size_t n_image;
        ("image_start", c_char_p),  # const char* image_start;
        ("image_end", c_char_p),  # const char* image_end;
        ("image_content", c_char_p),  # const char* image_content;
        ("image_width", c_size_t),  # size_t image_width;
        ("image_height", c_size_t),  # size_t image_height;
    ]


class RKLLMVideoInput(Structure):
    """The videos of a multimodal prompt (a struct without a name in the header)."""

    _fields_: ClassVar[Any] = [
        ("video_embed", POINTER(c_float)),  # float* video_embed;
        ("n_frame_tokens", c_size_t),  # size_t n_frame_tokens;
        ("n_frame_per_video", c_size_t),  # size_t n_frame_per_video;
        ("n_video", c_size_t),  # size_t n_video;
        ("video_start", c_char_p),  # const char* video_start;
        ("video_end", c_char_p),  # const char* video_end;
        ("video_content", c_char_p),  # const char* video_content;
        ("frame_width", c_size_t),  # size_t frame_width;
        ("frame_height", c_size_t),  # size_t frame_height;
    ]


class RKLLMMultiModalInput(Structure):
    """A prompt as text with marks where images and videos stand, and their embeddings."""

    _fields_: ClassVar[Any] = [
        ("prompt", c_char_p),  # char* prompt;
        ("image", RKLLMImageInput),  # struct { ... } image;
        ("video", RKLLMVideoInput),  # struct { ... } video;
    ]


class _RKLLMInputUnion(Union):
    _fields_: ClassVar[Any] = [
        ("prompt_input", c_char_p),  # const char* prompt_input;
        ("embed_input", RKLLMEmbedInput),  # RKLLMEmbedInput embed_input;
        ("token_input", RKLLMTokenInput),  # RKLLMTokenInput token_input;
        ("multimodal_input", RKLLMMultiModalInput),  # RKLLMMultiModalInput multimodal_input;
    ]


class RKLLMInput(Structure):
    """What a run starts from."""

    _anonymous_ = ("prompt",)
    _fields_: ClassVar[Any] = [
        ("role", c_char_p),  # const char* role;
        ("enable_thinking", c_bool),  # bool enable_thinking;
        ("input_type", c_int),  # RKLLMInputType input_type;
        ("prompt", _RKLLMInputUnion),  # union { ... };
    ]


class RKLLMLoraParam(Structure):
    """The adapter of a run."""

    _fields_: ClassVar[Any] = [
        ("lora_adapter_name", c_char_p),  # const char* lora_adapter_name;
    ]


class RKLLMPromptCacheParam(Structure):
    """Where a run saves the KV cache of its prompt."""

    _fields_: ClassVar[Any] = [
        ("save_prompt_cache", c_int),  # int save_prompt_cache;
        ("prompt_cache_path", c_char_p),  # const char* prompt_cache_path;
    ]


class RKLLMCrossAttnParam(Structure):
    """Keys and values of an encoder."""

    _fields_: ClassVar[Any] = [
        ("encoder_k_cache", POINTER(c_float)),  # float* encoder_k_cache;
        ("encoder_v_cache", POINTER(c_float)),  # float* encoder_v_cache;
        ("encoder_mask", POINTER(c_float)),  # float* encoder_mask;
        ("encoder_pos", POINTER(c_int32)),  # int32_t* encoder_pos;
        ("num_tokens", c_int),  # int num_tokens;
    ]


class RKLLMSamplingParam(Structure):
    """Sampling of one run; it wins over what rkllm_init was given."""

    _fields_: ClassVar[Any] = [
        ("top_k", c_int32),  # int32_t top_k;
        ("top_p", c_float),  # float top_p;
        ("temperature", c_float),  # float temperature;
        ("repeat_penalty", c_float),  # float repeat_penalty;
        ("frequency_penalty", c_float),  # float frequency_penalty;
        ("presence_penalty", c_float),  # float presence_penalty;
        ("mirostat", c_int32),  # int32_t mirostat;
        ("mirostat_tau", c_float),  # float mirostat_tau;
        ("mirostat_eta", c_float),  # float mirostat_eta;
    ]


class RKLLMInferParam(Structure):
    """What a run makes and how."""

    _fields_: ClassVar[Any] = [
        ("mode", c_int),  # RKLLMInferMode mode;
        ("lora_params", POINTER(RKLLMLoraParam)),  # RKLLMLoraParam* lora_params;
        (
            "prompt_cache_params",
            POINTER(RKLLMPromptCacheParam),
        ),  # RKLLMPromptCacheParam* prompt_cache_params;
        ("sampling_params", POINTER(RKLLMSamplingParam)),  # RKLLMSamplingParam* sampling_params;
        ("keep_history", c_int),  # int keep_history;
        ("max_new_tokens", c_int32),  # int32_t max_new_tokens;
    ]


class RKLLMResultLastHiddenLayer(Structure):
    """Hidden states, num_tokens x embd_size floats."""

    _fields_: ClassVar[Any] = [
        ("hidden_states", POINTER(c_float)),  # const float* hidden_states;
        ("embd_size", c_int),  # int embd_size;
        ("num_tokens", c_int),  # int num_tokens;
    ]


class RKLLMResultLogits(Structure):
    """Logits, num_tokens x vocab_size floats."""

    _fields_: ClassVar[Any] = [
        ("logits", POINTER(c_float)),  # const float* logits;
        ("vocab_size", c_int),  # int vocab_size;
        ("num_tokens", c_int),  # int num_tokens;
    ]


class RKLLMPerfStat(Structure):
    """Figures of a run; they come with FINISH. memory_usage_mb is the process's highest resident size."""

    _fields_: ClassVar[Any] = [
        ("prefill_time_ms", c_float),  # float prefill_time_ms;
        ("prefill_tokens", c_int),  # int prefill_tokens;
        ("generate_time_ms", c_float),  # float generate_time_ms;
        ("generate_tokens", c_int),  # int generate_tokens;
        ("memory_usage_mb", c_float),  # float memory_usage_mb;
    ]


class RKLLMResult(Structure):
    """What a callback is handed. text may be NULL. With batches: the first of n_batch of these."""

    _fields_: ClassVar[Any] = [
        ("text", c_char_p),  # const char* text;
        ("token_id", c_int32),  # int32_t token_id;
        ("last_hidden_layer", RKLLMResultLastHiddenLayer),  # RKLLMResultLastHiddenLayer last_hidden_layer;
        ("logits", RKLLMResultLogits),  # RKLLMResultLogits logits;
        ("perf", RKLLMPerfStat),  # RKLLMPerfStat perf;
    ]


# typedef int (*LLMResultCallback)(RKLLMResult* result, void* userdata, LLMCallState state);
LLMResultCallback = CFUNCTYPE(c_int, POINTER(RKLLMResult), c_void_p, c_int)

# typedef int (*LLMTokenizerCallback)(void* userdata, const char* text, int32_t text_len, int32_t* tokens,
#                                     int32_t n_tokens_max);
# Returns the count, or a negative number.
LLMTokenizerCallback = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32)

# typedef int (*LLMGetEmbedCallback)(void* userdata, int32_t* tokens, uint64_t num_tokens, void* embed,
#                                    uint64_t len);
# Returns 0 on success; len is in bytes.
LLMGetEmbedCallback = CFUNCTYPE(c_int, c_void_p, POINTER(c_int32), c_uint64, c_void_p, c_uint64)


class RKLLMCallback(Structure):
    """The callbacks of a handle; those that are NULL are not called."""

    _fields_: ClassVar[Any] = [
        ("result_callback", LLMResultCallback),  # LLMResultCallback result_callback;
        ("result_userdata", c_void_p),  # void* result_userdata;
        ("tokenizer_callback", LLMTokenizerCallback),  # LLMTokenizerCallback tokenizer_callback;
        ("tokenizer_userdata", c_void_p),  # void* tokenizer_userdata;
        ("embed_callback", LLMGetEmbedCallback),  # LLMGetEmbedCallback embed_callback;
        ("embed_userdata", c_void_p),  # void* embed_userdata;
    ]


class RoomyParam(Structure):
    """RKLLMParam with room behind it.

    rkllm_createDefaultParam writes its result into memory of the caller: a library whose struct is longer
    than ours, such as 1.2, writes into the room instead of over something else.
    """

    _fields_: ClassVar[Any] = [("param", RKLLMParam), ("room", c_uint8 * 840)]


def raw_byte(struct: Structure, field: str) -> int:
    """Return the first byte of a field as it lies in memory; a C bool may hold more than 0 and 1."""
    offset: int = getattr(type(struct), field).offset
    return ctypes.string_at(ctypes.addressof(struct) + offset, 1)[0]

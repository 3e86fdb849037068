// The part of librkllmrt's C ABI that 1.2.x and 1.3.x share: enums, handles, results, callbacks.
// Every size and offset is asserted, so that a compiler that lays a struct out differently cannot build this.
#pragma once
#include <cstddef>
#include <cstdint>

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

using LLMHandle = void*;

enum LLMCallState { RKLLM_RUN_NORMAL = 0, RKLLM_RUN_WAITING = 1, RKLLM_RUN_FINISH = 2, RKLLM_RUN_ERROR = 3 };
enum RKLLMInputType { RKLLM_INPUT_PROMPT = 0, RKLLM_INPUT_TOKEN = 1, RKLLM_INPUT_EMBED = 2, RKLLM_INPUT_MULTIMODAL = 3 };
enum RKLLMInferMode { RKLLM_INFER_GENERATE = 0, RKLLM_INFER_GET_LAST_HIDDEN_LAYER = 1, RKLLM_INFER_GET_LOGITS = 2 };

struct RKLLMExtendParam {
  int32_t base_domain_id;
  int8_t embed_flash;
  int8_t enabled_cpus_num;
  uint32_t enabled_cpus_mask;
  uint8_t n_batch;
  int8_t use_cross_attn;
  uint8_t reserved[104];
};

struct RKLLMLoraAdapter {
  const char* lora_adapter_path;
  const char* lora_adapter_name;
  float scale;
};

struct RKLLMEmbedInput {
  float* embed;
  size_t n_tokens;
};

struct RKLLMTokenInput {
  int32_t* input_ids;
  size_t n_tokens;
};

struct RKLLMLoraParam {
  const char* lora_adapter_name;
};

struct RKLLMPromptCacheParam {
  int save_prompt_cache;
  const char* prompt_cache_path;
};

struct RKLLMCrossAttnParam {
  float* encoder_k_cache;
  float* encoder_v_cache;
  float* encoder_mask;
  int32_t* encoder_pos;
  int num_tokens;
};

struct RKLLMResultLastHiddenLayer {
  const float* hidden_states;
  int embd_size;
  int num_tokens;
};

struct RKLLMResultLogits {
  const float* logits;
  int vocab_size;
  int num_tokens;
};

struct RKLLMPerfStat {
  float prefill_time_ms;
  int prefill_tokens;
  float generate_time_ms;
  int generate_tokens;
  float memory_usage_mb;
};

struct RKLLMResult {
  const char* text;
  int32_t token_id;
  RKLLMResultLastHiddenLayer last_hidden_layer;
  RKLLMResultLogits logits;
  RKLLMPerfStat perf;
};

using LLMResultCallback = int (*)(RKLLMResult* result, void* userdata, LLMCallState state);
using LLMTokenizerCallback = int (*)(void* userdata, const char* text, int32_t text_len, int32_t* tokens,
                                     int32_t n_tokens_max);
using LLMGetEmbedCallback = int (*)(void* userdata, int32_t* tokens, uint64_t num_tokens, void* embed, uint64_t len);

#define SIZE(type, size, align) static_assert(sizeof(type) == (size) && alignof(type) == (align), #type)
#define FIELD(type, field, offset, size) \
  static_assert(offsetof(type, field) == (offset) && sizeof(static_cast<type*>(nullptr)->field) == (size), #type "." #field)

static_assert(sizeof(LLMCallState) == 4 && sizeof(RKLLMInputType) == 4 && sizeof(RKLLMInferMode) == 4, "enums are ints");
SIZE(RKLLMExtendParam, 120, 4);
FIELD(RKLLMExtendParam, base_domain_id, 0, 4);
FIELD(RKLLMExtendParam, embed_flash, 4, 1);
FIELD(RKLLMExtendParam, enabled_cpus_num, 5, 1);
FIELD(RKLLMExtendParam, enabled_cpus_mask, 8, 4);
FIELD(RKLLMExtendParam, n_batch, 12, 1);
FIELD(RKLLMExtendParam, use_cross_attn, 13, 1);
FIELD(RKLLMExtendParam, reserved, 14, 104);
SIZE(RKLLMLoraAdapter, 24, 8);
FIELD(RKLLMLoraAdapter, lora_adapter_path, 0, 8);
FIELD(RKLLMLoraAdapter, lora_adapter_name, 8, 8);
FIELD(RKLLMLoraAdapter, scale, 16, 4);
SIZE(RKLLMEmbedInput, 16, 8);
FIELD(RKLLMEmbedInput, embed, 0, 8);
FIELD(RKLLMEmbedInput, n_tokens, 8, 8);
SIZE(RKLLMTokenInput, 16, 8);
FIELD(RKLLMTokenInput, input_ids, 0, 8);
FIELD(RKLLMTokenInput, n_tokens, 8, 8);
SIZE(RKLLMLoraParam, 8, 8);
FIELD(RKLLMLoraParam, lora_adapter_name, 0, 8);
SIZE(RKLLMPromptCacheParam, 16, 8);
FIELD(RKLLMPromptCacheParam, save_prompt_cache, 0, 4);
FIELD(RKLLMPromptCacheParam, prompt_cache_path, 8, 8);
SIZE(RKLLMCrossAttnParam, 40, 8);
FIELD(RKLLMCrossAttnParam, encoder_k_cache, 0, 8);
FIELD(RKLLMCrossAttnParam, encoder_v_cache, 8, 8);
FIELD(RKLLMCrossAttnParam, encoder_mask, 16, 8);
FIELD(RKLLMCrossAttnParam, encoder_pos, 24, 8);
FIELD(RKLLMCrossAttnParam, num_tokens, 32, 4);
SIZE(RKLLMResultLastHiddenLayer, 16, 8);
FIELD(RKLLMResultLastHiddenLayer, hidden_states, 0, 8);
FIELD(RKLLMResultLastHiddenLayer, embd_size, 8, 4);
FIELD(RKLLMResultLastHiddenLayer, num_tokens, 12, 4);
SIZE(RKLLMResultLogits, 16, 8);
FIELD(RKLLMResultLogits, logits, 0, 8);
FIELD(RKLLMResultLogits, vocab_size, 8, 4);
FIELD(RKLLMResultLogits, num_tokens, 12, 4);
SIZE(RKLLMPerfStat, 20, 4);
FIELD(RKLLMPerfStat, prefill_time_ms, 0, 4);
FIELD(RKLLMPerfStat, prefill_tokens, 4, 4);
FIELD(RKLLMPerfStat, generate_time_ms, 8, 4);
FIELD(RKLLMPerfStat, generate_tokens, 12, 4);
FIELD(RKLLMPerfStat, memory_usage_mb, 16, 4);
SIZE(RKLLMResult, 72, 8);
FIELD(RKLLMResult, text, 0, 8);
FIELD(RKLLMResult, token_id, 8, 4);
FIELD(RKLLMResult, last_hidden_layer, 16, 16);
FIELD(RKLLMResult, logits, 32, 16);
FIELD(RKLLMResult, perf, 48, 20);

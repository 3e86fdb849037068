// The structs of librkllmrt 1.2.x that differ from 1.3.x: image marks inside RKLLMParam, a short multimodal input, no
// sampling in RKLLMInferParam, and a bare function pointer where 1.3 passes RKLLMCallback. Asserted as well, since the
// point of this library is to be called with the other layout and to be hurt by it.
#pragma once
#include "abi_common.h"

struct RKLLMParam {
  const char* model_path;
  int32_t max_context_len;
  int32_t max_new_tokens;
  int32_t top_k;
  int32_t n_keep;
  float top_p;
  float temperature;
  float repeat_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t mirostat;
  float mirostat_tau;
  float mirostat_eta;
  bool skip_special_token;
  bool is_async;
  const char* img_start;
  const char* img_end;
  const char* img_content;
  RKLLMExtendParam extend_param;
};

struct RKLLMMultiModalInput {
  char* prompt;
  float* image_embed;
  size_t n_image_tokens;
  size_t n_image;
  size_t image_width;
  size_t image_height;
};

struct RKLLMInput {
  const char* role;
  bool enable_thinking;
  RKLLMInputType input_type;
  union {
    const char* prompt_input;
    RKLLMEmbedInput embed_input;
    RKLLMTokenInput token_input;
    RKLLMMultiModalInput multimodal_input;
  };
};

struct RKLLMInferParam {
  RKLLMInferMode mode;
  RKLLMLoraParam* lora_params;
  RKLLMPromptCacheParam* prompt_cache_params;
  int keep_history;
};

SIZE(RKLLMParam, 208, 8);
FIELD(RKLLMParam, skip_special_token, 56, 1);
FIELD(RKLLMParam, is_async, 57, 1);
FIELD(RKLLMParam, img_start, 64, 8);
FIELD(RKLLMParam, extend_param, 88, 120);
SIZE(RKLLMMultiModalInput, 48, 8);
SIZE(RKLLMInput, 64, 8);
FIELD(RKLLMInput, input_type, 12, 4);
FIELD(RKLLMInput, multimodal_input, 16, 48);
SIZE(RKLLMInferParam, 32, 8);
FIELD(RKLLMInferParam, keep_history, 24, 4);

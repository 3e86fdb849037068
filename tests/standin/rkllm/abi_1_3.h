// The structs of librkllmrt 1.3.x that 1.2.x lays out differently, with every size and offset asserted.
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
  bool ignore_eos_token;
  bool is_async;
  RKLLMExtendParam extend_param;
};

struct RKLLMMultiModalInput {
  char* prompt;
  struct {
    float* image_embed;
    size_t n_image_tokens;
    size_t n_image;
    const char* image_start;
    const char* image_end;
    const char* image_content;
    size_t image_width;
    size_t image_height;
  } image;
  struct {
    float* video_embed;
    size_t n_frame_tokens;
    size_t n_frame_per_video;
    size_t n_video;
    const char* video_start;
    const char* video_end;
    const char* video_content;
    size_t frame_width;
    size_t frame_height;
  } video;
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

struct RKLLMSamplingParam {
  int32_t top_k;
  float top_p;
  float temperature;
  float repeat_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t mirostat;
  float mirostat_tau;
  float mirostat_eta;
};

struct RKLLMInferParam {
  RKLLMInferMode mode;
  RKLLMLoraParam* lora_params;
  RKLLMPromptCacheParam* prompt_cache_params;
  RKLLMSamplingParam* sampling_params;
  int keep_history;
  int32_t max_new_tokens;
};

struct RKLLMCallback {
  LLMResultCallback result_callback;
  void* result_userdata;
  LLMTokenizerCallback tokenizer_callback;
  void* tokenizer_userdata;
  LLMGetEmbedCallback embed_callback;
  void* embed_userdata;
};

SIZE(RKLLMParam, 184, 8);
FIELD(RKLLMParam, model_path, 0, 8);
FIELD(RKLLMParam, max_context_len, 8, 4);
FIELD(RKLLMParam, max_new_tokens, 12, 4);
FIELD(RKLLMParam, top_k, 16, 4);
FIELD(RKLLMParam, n_keep, 20, 4);
FIELD(RKLLMParam, top_p, 24, 4);
FIELD(RKLLMParam, temperature, 28, 4);
FIELD(RKLLMParam, repeat_penalty, 32, 4);
FIELD(RKLLMParam, frequency_penalty, 36, 4);
FIELD(RKLLMParam, presence_penalty, 40, 4);
FIELD(RKLLMParam, mirostat, 44, 4);
FIELD(RKLLMParam, mirostat_tau, 48, 4);
FIELD(RKLLMParam, mirostat_eta, 52, 4);
FIELD(RKLLMParam, skip_special_token, 56, 1);
FIELD(RKLLMParam, ignore_eos_token, 57, 1);
FIELD(RKLLMParam, is_async, 58, 1);
FIELD(RKLLMParam, extend_param, 60, 120);
SIZE(RKLLMMultiModalInput, 144, 8);
FIELD(RKLLMMultiModalInput, prompt, 0, 8);
FIELD(RKLLMMultiModalInput, image, 8, 64);
FIELD(RKLLMMultiModalInput, image.image_embed, 8, 8);
FIELD(RKLLMMultiModalInput, image.n_image_tokens, 16, 8);
FIELD(RKLLMMultiModalInput, image.n_image, 24, 8);
FIELD(RKLLMMultiModalInput, image.image_start, 32, 8);
FIELD(RKLLMMultiModalInput, image.image_end, 40, 8);
FIELD(RKLLMMultiModalInput, image.image_content, 48, 8);
FIELD(RKLLMMultiModalInput, image.image_width, 56, 8);
FIELD(RKLLMMultiModalInput, image.image_height, 64, 8);
FIELD(RKLLMMultiModalInput, video, 72, 72);
FIELD(RKLLMMultiModalInput, video.video_embed, 72, 8);
FIELD(RKLLMMultiModalInput, video.n_frame_tokens, 80, 8);
FIELD(RKLLMMultiModalInput, video.n_frame_per_video, 88, 8);
FIELD(RKLLMMultiModalInput, video.n_video, 96, 8);
FIELD(RKLLMMultiModalInput, video.video_start, 104, 8);
FIELD(RKLLMMultiModalInput, video.video_end, 112, 8);
FIELD(RKLLMMultiModalInput, video.video_content, 120, 8);
FIELD(RKLLMMultiModalInput, video.frame_width, 128, 8);
FIELD(RKLLMMultiModalInput, video.frame_height, 136, 8);
SIZE(RKLLMInput, 160, 8);
FIELD(RKLLMInput, role, 0, 8);
FIELD(RKLLMInput, enable_thinking, 8, 1);
FIELD(RKLLMInput, input_type, 12, 4);
FIELD(RKLLMInput, prompt_input, 16, 8);
FIELD(RKLLMInput, embed_input, 16, 16);
FIELD(RKLLMInput, token_input, 16, 16);
FIELD(RKLLMInput, multimodal_input, 16, 144);
SIZE(RKLLMSamplingParam, 36, 4);
FIELD(RKLLMSamplingParam, top_k, 0, 4);
FIELD(RKLLMSamplingParam, top_p, 4, 4);
FIELD(RKLLMSamplingParam, temperature, 8, 4);
FIELD(RKLLMSamplingParam, repeat_penalty, 12, 4);
FIELD(RKLLMSamplingParam, frequency_penalty, 16, 4);
FIELD(RKLLMSamplingParam, presence_penalty, 20, 4);
FIELD(RKLLMSamplingParam, mirostat, 24, 4);
FIELD(RKLLMSamplingParam, mirostat_tau, 28, 4);
FIELD(RKLLMSamplingParam, mirostat_eta, 32, 4);
SIZE(RKLLMInferParam, 40, 8);
FIELD(RKLLMInferParam, mode, 0, 4);
FIELD(RKLLMInferParam, lora_params, 8, 8);
FIELD(RKLLMInferParam, prompt_cache_params, 16, 8);
FIELD(RKLLMInferParam, sampling_params, 24, 8);
FIELD(RKLLMInferParam, keep_history, 32, 4);
FIELD(RKLLMInferParam, max_new_tokens, 36, 4);
SIZE(RKLLMCallback, 48, 8);
FIELD(RKLLMCallback, result_callback, 0, 8);
FIELD(RKLLMCallback, result_userdata, 8, 8);
FIELD(RKLLMCallback, tokenizer_callback, 16, 8);
FIELD(RKLLMCallback, tokenizer_userdata, 24, 8);
FIELD(RKLLMCallback, embed_callback, 32, 8);
FIELD(RKLLMCallback, embed_userdata, 40, 8);

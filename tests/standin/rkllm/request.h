// What the API's structs say, in types that do not depend on the layout. The api_*.cpp files translate; the engine sees
// only these.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi_common.h"

namespace standin {

struct Sampling {
  int32_t top_k;
  float top_p, temperature, repeat_penalty, frequency_penalty, presence_penalty;
  int32_t mirostat;
  float mirostat_tau, mirostat_eta;
};

struct InitRequest {
  std::string model_path;
  int32_t max_context_len, max_new_tokens, n_keep;
  Sampling sampling;
  bool skip_special_token, ignore_eos_token, is_async;
  RKLLMExtendParam extend;
};

struct Callbacks {
  LLMResultCallback result;
  void* userdata;
  LLMTokenizerCallback tokenizer;
  void* tokenizer_userdata;
  LLMGetEmbedCallback embed;
  void* embed_userdata;
};

// A block of embeddings: images, or frames of videos.
struct Pixels {
  const float* embed;
  size_t tokens_each, count;
  const char *start, *end, *content;  // marks; null where the layout has none
  bool has_marks;
  size_t width, height;
};

struct Input {
  RKLLMInputType type;
  const char* role;
  bool enable_thinking;
  const char* prompt;                 // PROMPT, MULTIMODAL
  const int32_t* ids;                 // TOKEN
  const float* embed;                 // EMBED
  size_t n_tokens;                    // TOKEN, EMBED
  std::optional<Pixels> image, video; // MULTIMODAL
};

struct RunRequest {
  std::vector<Input> inputs;          // one per batch slot
  RKLLMInferMode mode;
  std::optional<std::string> lora;
  std::optional<std::string> prompt_cache_path;
  bool save_prompt_cache;
  std::optional<Sampling> sampling;
  int keep_history;
  int32_t max_new_tokens;             // 0 or less: the one of init
  void* userdata;
};

}  // namespace standin

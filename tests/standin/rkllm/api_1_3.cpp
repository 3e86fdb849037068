// createDefaultParam, init, run and run_async with the structs of 1.3.x.
#include <cstring>

#include "abi_1_3.h"
#include "api.h"

using namespace standin;

namespace {

Sampling sampling_of(const RKLLMSamplingParam& p) {
  return {p.top_k,    p.top_p,        p.temperature, p.repeat_penalty, p.frequency_penalty, p.presence_penalty,
          p.mirostat, p.mirostat_tau, p.mirostat_eta};
}

InitRequest init_of(const RKLLMParam& p) {
  return {required_string(p.model_path, "model_path"),
          p.max_context_len,
          p.max_new_tokens,
          p.n_keep,
          {p.top_k, p.top_p, p.temperature, p.repeat_penalty, p.frequency_penalty, p.presence_penalty, p.mirostat,
           p.mirostat_tau, p.mirostat_eta},
          p.skip_special_token,
          p.ignore_eos_token,
          p.is_async,
          p.extend_param};
}

Input input_of(const RKLLMInput& given) {
  Input input{};
  input.type = given.input_type;
  input.role = given.role;
  input.enable_thinking = given.enable_thinking;
  switch (given.input_type) {
    case RKLLM_INPUT_PROMPT: input.prompt = given.prompt_input; break;
    case RKLLM_INPUT_TOKEN:
      input.ids = given.token_input.input_ids;
      input.n_tokens = given.token_input.n_tokens;
      break;
    case RKLLM_INPUT_EMBED:
      input.embed = given.embed_input.embed;
      input.n_tokens = given.embed_input.n_tokens;
      break;
    case RKLLM_INPUT_MULTIMODAL: {
      const auto& image = given.multimodal_input.image;
      const auto& video = given.multimodal_input.video;
      input.prompt = given.multimodal_input.prompt;
      input.image = Pixels{image.image_embed,   image.n_image_tokens, image.n_image,     image.image_start, image.image_end,
                           image.image_content, true,                 image.image_width, image.image_height};
      input.video = Pixels{video.video_embed, video.n_frame_tokens, video.n_frame_per_video * video.n_video,
                           video.video_start, video.video_end,      video.video_content,
                           true,              video.frame_width,    video.frame_height};
      break;
    }
  }
  return input;
}

RunRequest run_of(const RKLLMInput* inputs, const RKLLMInferParam& param, size_t batch, void* userdata) {
  RunRequest request{};
  for (size_t slot = 0; slot < batch; ++slot) request.inputs.push_back(input_of(inputs[slot]));
  request.mode = param.mode;
  if (param.lora_params != nullptr) request.lora = required_string(param.lora_params->lora_adapter_name, "lora_adapter_name");
  if (param.prompt_cache_params != nullptr) {
    request.prompt_cache_path = required_string(param.prompt_cache_params->prompt_cache_path, "prompt_cache_path");
    request.save_prompt_cache = param.prompt_cache_params->save_prompt_cache != 0;
  }
  if (param.sampling_params != nullptr) request.sampling = sampling_of(*param.sampling_params);
  request.keep_history = param.keep_history;
  request.max_new_tokens = param.max_new_tokens;
  request.userdata = userdata;
  return request;
}

}  // namespace

STANDIN_EXPORT RKLLMParam rkllm_createDefaultParam() {
  enter("rkllm_createDefaultParam");
  RKLLMParam param{};
  const Sampling sampling = default_sampling();
  param.max_context_len = 512;
  param.max_new_tokens = 256;
  param.top_k = sampling.top_k;
  param.top_p = sampling.top_p;
  param.temperature = sampling.temperature;
  param.repeat_penalty = sampling.repeat_penalty;
  param.mirostat_tau = sampling.mirostat_tau;
  param.mirostat_eta = sampling.mirostat_eta;
  param.extend_param = default_extend();
#ifdef STANDIN_SHIFTED_DEFAULTS
  // A later patch release that put a new int in front of max_context_len.
  char* const begin = reinterpret_cast<char*>(&param) + offsetof(RKLLMParam, max_context_len);
  std::memmove(begin + 4, begin, sizeof param - offsetof(RKLLMParam, max_context_len) - 4);
  std::memset(begin, 0, 4);
#endif
  return param;
}

STANDIN_EXPORT int rkllm_init(LLMHandle* handle, RKLLMParam* param, RKLLMCallback* callback) {
  enter("rkllm_init");
  return open_model(handle, init_of(*param),
                    {callback->result_callback, callback->result_userdata, callback->tokenizer_callback,
                     callback->tokenizer_userdata, callback->embed_callback, callback->embed_userdata});
}

STANDIN_EXPORT int rkllm_run(LLMHandle handle, RKLLMInput* rkllm_input, RKLLMInferParam* rkllm_infer_params, void* userdata) {
  enter("rkllm_run");
  const size_t batch = alive(handle, "rkllm_run").batch();
  return start(handle, run_of(rkllm_input, *rkllm_infer_params, batch, userdata), false);
}

STANDIN_EXPORT int rkllm_run_async(LLMHandle handle, RKLLMInput* rkllm_input, RKLLMInferParam* rkllm_infer_params,
                                   void* userdata) {
  enter("rkllm_run_async");
  const size_t batch = alive(handle, "rkllm_run_async").batch();
  return start(handle, run_of(rkllm_input, *rkllm_infer_params, batch, userdata), true);
}

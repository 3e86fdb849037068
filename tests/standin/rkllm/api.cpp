#include "api.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "call_log.h"
#include "checksum.h"
#include "loud.h"
#include "version.h"

namespace standin {

int open_model(LLMHandle* handle, InitRequest init, Callbacks callbacks) {
  JsonLine line;
  line.text("model_path", init.model_path).integer("max_context_len", init.max_context_len);
  line.integer("max_new_tokens", init.max_new_tokens).integer("n_keep", init.n_keep).integer("top_k", init.sampling.top_k);
  line.number("top_p", init.sampling.top_p).number("temperature", init.sampling.temperature);
  line.number("repeat_penalty", init.sampling.repeat_penalty);
  line.boolean("skip_special_token", init.skip_special_token).boolean("ignore_eos_token", init.ignore_eos_token);
  line.boolean("is_async", init.is_async).integer("base_domain_id", init.extend.base_domain_id);
  line.integer("embed_flash", init.extend.embed_flash).integer("enabled_cpus_num", init.extend.enabled_cpus_num);
  line.integer("enabled_cpus_mask", init.extend.enabled_cpus_mask).integer("n_batch", init.extend.n_batch);
  line.integer("use_cross_attn", init.extend.use_cross_attn).text("version", kVersion);
  line.boolean("tokenizer_callback", callbacks.tokenizer != nullptr).boolean("embed_callback", callbacks.embed != nullptr);
  log_call("rkllm_init", line);
  if (!is_code(reinterpret_cast<const void*>(callbacks.result))) {
    die(std::string("rkllm_init: the result callback is no code: the caller uses another version's layout (this is ") +
        kVersion + ")");
  }
  auto engine = std::make_unique<Engine>(std::move(init), callbacks);
  const Engine::Loaded loaded = engine->load();
  if (loaded.usable) *handle = give_out(std::move(engine));
  JsonLine end;
  log_call("init_end", end.integer("return", loaded.code).boolean("handle", loaded.usable));
  return loaded.code;
}

int start(LLMHandle handle, const RunRequest& request, bool async) {
  return alive(handle, async ? "rkllm_run_async" : "rkllm_run").run(request, async);
}

Sampling default_sampling() { return {40, 0.9f, 0.8f, 1.1f, 0.0f, 0.0f, 0, 5.0f, 0.1f}; }

RKLLMExtendParam default_extend() {
  RKLLMExtendParam extend{};
  extend.embed_flash = 1;
  extend.enabled_cpus_num = 4;
  extend.enabled_cpus_mask = 0xF0;
  extend.n_batch = 1;
  return extend;
}

const char* required_string(const char* text, const char* what) {
  if (text == nullptr) die(std::string("basic_string: construction from null is not valid (") + what + ")");
  return text;
}

bool is_code(const void* address) {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return true;
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool code = false;
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    uintptr_t from = 0, to = 0;
    char rights[8] = "";
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &from, &to, rights) == 3 && wanted >= from && wanted < to) {
      code = rights[2] == 'x';
    }
  }
  std::fclose(maps);
  return code;
}

}  // namespace standin

using namespace standin;

STANDIN_EXPORT int rkllm_load_lora(LLMHandle handle, RKLLMLoraAdapter* lora_adapter) {
  enter("rkllm_load_lora");
  const char* path = required_string(lora_adapter->lora_adapter_path, "lora_adapter_path");
  const char* name = required_string(lora_adapter->lora_adapter_name, "lora_adapter_name");
  const int code = alive(handle, "rkllm_load_lora").load_lora(path, name, lora_adapter->scale);
  JsonLine line;
  log_call("rkllm_load_lora",
           line.text("path", path).text("name", name).number("scale", lora_adapter->scale).integer("return", code));
  return code;
}

STANDIN_EXPORT int rkllm_load_prompt_cache(LLMHandle handle, const char* prompt_cache_path) {
  enter("rkllm_load_prompt_cache");
  const char* path = required_string(prompt_cache_path, "prompt_cache_path");
  const int code = alive(handle, "rkllm_load_prompt_cache").load_prompt_cache(path);
  log_call("rkllm_load_prompt_cache", JsonLine().text("path", path).integer("return", code));
  return code;
}

STANDIN_EXPORT int rkllm_release_prompt_cache(LLMHandle handle) {
  enter("rkllm_release_prompt_cache");
  const int code = alive(handle, "rkllm_release_prompt_cache").release_prompt_cache();
  log_call("rkllm_release_prompt_cache", JsonLine().integer("return", code));
  return code;
}

STANDIN_EXPORT int rkllm_destroy(LLMHandle handle) {
  enter("rkllm_destroy");
  log_call("rkllm_destroy", JsonLine());
  alive(handle, "rkllm_destroy").before_destroy();
  take_back(handle).reset();
  log_call("destroy_end", JsonLine().integer("return", 0));
  return 0;
}

STANDIN_EXPORT int rkllm_abort(LLMHandle handle) {
  enter("rkllm_abort");
  log_call("rkllm_abort", JsonLine());
  const int code = alive(handle, "rkllm_abort").abort();
  log_call("abort_end", JsonLine().integer("return", code));
  return code;
}

STANDIN_EXPORT int rkllm_is_running(LLMHandle handle) {
  enter("rkllm_is_running");
  return alive(handle, "rkllm_is_running").is_running_value();
}

STANDIN_EXPORT int rkllm_clear_kv_cache(LLMHandle handle, int keep_system_prompt, int* start_pos, int* end_pos) {
  enter("rkllm_clear_kv_cache");
  const int code = alive(handle, "rkllm_clear_kv_cache").clear_kv_cache(keep_system_prompt != 0, start_pos, end_pos);
  JsonLine line;
  line.integer("keep_system_prompt", keep_system_prompt).boolean("range", start_pos != nullptr && end_pos != nullptr);
  log_call("rkllm_clear_kv_cache", line.integer("return", code));
  return code;
}

STANDIN_EXPORT int rkllm_get_kv_cache_size(LLMHandle handle, int* cache_sizes) {
  enter("rkllm_get_kv_cache_size");
  const int code = alive(handle, "rkllm_get_kv_cache_size").kv_cache_sizes(cache_sizes);
  log_call("rkllm_get_kv_cache_size", JsonLine().integer("return", code).integer("size", code == 0 ? cache_sizes[0] : -1));
  return code;
}

STANDIN_EXPORT int rkllm_set_chat_template(LLMHandle handle, const char* system_prompt, const char* prompt_prefix,
                                           const char* prompt_postfix) {
  enter("rkllm_set_chat_template");
  JsonLine line;
  line.text_or_null("system", system_prompt).text_or_null("prefix", prompt_prefix).text_or_null("postfix", prompt_postfix);
  log_call("rkllm_set_chat_template", line);
  return alive(handle, "rkllm_set_chat_template")
      .set_chat_template(required_string(system_prompt, "system_prompt"), required_string(prompt_prefix, "prompt_prefix"),
                         required_string(prompt_postfix, "prompt_postfix"));
}

STANDIN_EXPORT int rkllm_set_function_tools(LLMHandle handle, const char* system_prompt, const char* tools,
                                            const char* tool_response_str) {
  enter("rkllm_set_function_tools");
  JsonLine line;
  line.text_or_null("system", system_prompt).text_or_null("tools", tools).text_or_null("response", tool_response_str);
  const int code = alive(handle, "rkllm_set_function_tools")
                       .set_function_tools(required_string(system_prompt, "system_prompt"), required_string(tools, "tools"));
  log_call("rkllm_set_function_tools", line.integer("return", code));
  return code;
}

STANDIN_EXPORT int rkllm_set_cross_attn_params(LLMHandle handle, RKLLMCrossAttnParam* cross_attn_params) {
  enter("rkllm_set_cross_attn_params");
  const int code = alive(handle, "rkllm_set_cross_attn_params").set_cross_attn(*cross_attn_params);
  JsonLine line;
  line.integer("num_tokens", cross_attn_params->num_tokens).integer("return", code);
  if (code == 0) {
    const auto tokens = static_cast<size_t>(cross_attn_params->num_tokens);
    line.integer("mask_crc32", crc32(cross_attn_params->encoder_mask, tokens * sizeof(float)));
    line.integer("pos_crc32", crc32(cross_attn_params->encoder_pos, tokens * sizeof(int32_t)));
  }
  log_call("rkllm_set_cross_attn_params", line);
  return code;
}

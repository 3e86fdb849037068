#include "engine.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "call_log.h"
#include "checksum.h"
#include "delivery.h"
#include "faults.h"
#include "loud.h"
#include "prompt_cache.h"
#include "tokenizer.h"
#include "version.h"

namespace standin {
namespace {

void sleep_ms(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

}  // namespace

Engine::~Engine() {
  if (worker_.joinable()) worker_.join();
  for (std::thread& late : late_) late.join();
}

Engine::Loaded Engine::failed(const std::string& line) {
  if (!line.empty()) model_.log.line(line);
  model_.log.line("rkllm_init failed");
  return {model_.script.init_return.value_or(-1), false};
}

Engine::Loaded Engine::load() {
  Script& script = model_.script;
  const InitRequest& init = model_.init;
  const VendorLog& log = model_.log;
  const ModelFile file = read_script(init.model_path, script);
  log.runtime();
  if (script.init_error == "driver_too_old") return failed("rknpu driver version is too low");
  log.loading(init.model_path);
  if (file == ModelFile::Missing) return failed("failed to open model file " + init.model_path);
  if (file == ModelFile::NotAModel || script.init_error == "magic") {
    log.line("invalid rknn llm model magic");
    return {script.init_return.value_or(0), false};
  }
  if (script.init_error == "silent") return {script.init_return.value_or(0), false};
  if (script.init_error == "model_too_old") return failed("The model version is too old");
  log.toolkit();
  if (script.mismatch == "refuse" && script.toolkit != kVersion) return failed("The model version is too old");
  if (script.init_error == "platform" || script.platform != script.target_platform) {
    return failed("target_platform does not match");
  }
  if (init.max_context_len > script.context_limit) {
    return failed("max_context[" + std::to_string(init.max_context_len) + "] must be less than the model's max_context_limit[" +
                  std::to_string(script.context_limit) + "]");
  }
  model_.max_context = init.max_context_len > 0 ? init.max_context_len : script.context_limit;
  if (const Fault* fault = fault_due(script, FaultPlace::Load, 0, "")) strike(fault->kind);
  sleep_ms(script.load_ms);
  const bool enough = script.npu_mb <= 0 || model_.npu_memory.take(init.extend.base_domain_id, script.npu_mb, script.npu_domain_mb);
  if (!enough && script.when_short == "segv") strike(FaultKind::Segv);
  if (!enough || script.init_error == "npu_memory") {
    log.line("failed to allocate handle, ret: -1, errno: 14");
    return failed("failed to malloc npu memory");
  }
  model_.batch = init.extend.n_batch > 1 ? init.extend.n_batch : 1;
  model_.caches.resize(model_.batch);
  model_.chat = script.chat_template;
  log.cpus(init.extend.enabled_cpus_num, init.extend.enabled_cpus_mask);
  if (model_.chat) log.chat_template(model_.chat->system, model_.chat->prefix, model_.chat->postfix);
  for (const std::string& line : script.log_lines) log.line(line);
  return {script.init_return.value_or(0), true};
}

bool Engine::busy() {
  if (!running_) return false;
  model_.log.line(model_.script.busy == "submit" ? "failed to submit!" : "the model is running");
  return true;
}

int Engine::work(Run& run, void* userdata) {
  const int code = run.execute();
  if (model_.script.late_callbacks > 0) call_late(userdata);
  running_ = false;
  return code;
}

// With the run's userdata, which the caller may have freed by then.
void Engine::call_late(void* userdata) {
  late_.emplace_back([result = model_.callbacks.result, userdata, count = model_.script.late_callbacks] {
    sleep_ms(30);
    Delivery delivery(result, userdata, 1);
    for (int i = 0; i < count; ++i) {
      delivery.token(0, 'L', "late");
      delivery.send(RKLLM_RUN_NORMAL);
    }
  });
}

int Engine::run(const RunRequest& request, bool async) {
  bool idle = false;
  if (!running_.compare_exchange_strong(idle, true)) {
    log_call("run_refused", JsonLine().text("line", "busy").integer("return", -1));
    model_.log.line(model_.script.busy == "submit" ? "failed to submit!" : "the model is running");
    return -1;
  }
  if (worker_.joinable()) worker_.join();
  if (!sticky_abort_) abort_.clear();
  sticky_abort_ = false;
  auto run = std::make_shared<Run>(model_, abort_, in_prefill_, request);
  const int refused = run->prepare();
  if (refused != 0) {
    running_ = false;
    return refused;
  }
  void* const userdata = request.userdata != nullptr ? request.userdata : model_.callbacks.userdata;
  if (!async && !model_.init.is_async) return work(*run, userdata);
  worker_ = std::thread([this, run, userdata] { work(*run, userdata); });
  return 0;
}

int Engine::abort() {
  const Script& script = model_.script;
  if (const Fault* fault = fault_due(script, FaultPlace::Abort, 0, "")) strike(fault->kind);
  if (script.abort_effect == "hang_call") strike(FaultKind::Hang);
  if (!running_) {
    model_.paused.reset();
    if (script.abort_idle == "sticky") {
      sticky_abort_ = true;
      abort_.request(0);
    }
    return script.abort_idle == "refused" ? -1 : 0;
  }
  if (script.abort_effect != "ignored") {
    abort_.request(in_prefill_ ? script.abort_prefill_ms.value_or(script.abort_ms) : script.abort_ms);
  }
  return 0;
}

void Engine::before_destroy() {
  if (running_) die("rkllm_destroy while a run goes on: its memory would be used after it is freed");
  if (const Fault* fault = fault_due(model_.script, FaultPlace::Destroy, 0, "")) strike(fault->kind);
  sleep_ms(model_.script.destroy_ms);
}

int Engine::clear_kv_cache(bool keep_system_prompt, const int* start, const int* end) {
  if (busy()) return -1;
  if (start != nullptr && end != nullptr) {
    if (!model_.paused || model_.paused->keep_history != 0) {
      model_.log.line("clearing a range needs a paused run with keep_history 0");
      return -1;
    }
    for (size_t slot = 0; slot < model_.batch; ++slot) {
      if (start[slot] < 0 || end[slot] < start[slot]) return -1;
      model_.caches[slot].erase(static_cast<size_t>(start[slot]), static_cast<size_t>(end[slot]));
    }
    return 0;
  }
  const size_t kept = keep_system_prompt && model_.chat ? tokenize(model_.script, model_.chat->system).size() : 0;
  for (KvCache& cache : model_.caches) cache.truncate(kept);
  model_.paused.reset();
  model_.spoiled = false;
  return 0;
}

int Engine::kv_cache_sizes(int* sizes) const {
  if (running_) return -1;
  for (size_t slot = 0; slot < model_.batch; ++slot) sizes[slot] = static_cast<int>(model_.caches[slot].size());
  return 0;
}

int Engine::set_chat_template(const std::string& system, const std::string& prefix, const std::string& postfix) {
  if (busy()) return -1;
  model_.clear_caches();
  if (system.empty() && prefix.empty() && postfix.empty()) {
    model_.chat.reset();
  } else {
    model_.chat = ChatTemplate{system, prefix, postfix, ""};
  }
  model_.log.chat_template(system, prefix, postfix);
  return 0;
}

int Engine::set_function_tools(const std::string& system, const std::string& tools) {
  if (busy()) return -1;
  if (!model_.script.chat_template || !model_.chat) {
    model_.log.line("Failed to set function tools, possibly because the chat_template is empty");
    return -1;
  }
  model_.clear_caches();
  model_.chat->system = "<|im_start|>system\n" + system + "\n\n# Tools\n<tools>\n" + tools + "\n</tools><|im_end|>\n";
  return 0;
}

int Engine::load_lora(const std::string& path, const std::string& name, float scale) {
  if (busy()) return -1;
  if (model_.script.adapters == "segv") strike(FaultKind::Segv);
  if (access(path.c_str(), R_OK) != 0 || model_.script.adapters == "refuse") {
    model_.log.line("failed to load lora " + path);
    return -1;
  }
  model_.loras[name] = scale;
  return 0;
}

int Engine::load_prompt_cache(const std::string& path) {
  if (busy()) return -1;
  if (const Fault* fault = fault_due(model_.script, FaultPlace::LoadCache, 0, "")) strike(fault->kind);
  const std::optional<std::vector<int32_t>> ids = read_prompt_cache(path);
  if (!ids || model_.script.prompt_cache == "refuse") {
    if (model_.script.prompt_cache == "segv" && access(path.c_str(), R_OK) == 0) strike(FaultKind::Segv);
    model_.log.line("failed to load prompt cache " + path);
    return -1;
  }
  model_.clear_caches();
  for (KvCache& cache : model_.caches) cache.assign(*ids);
  return 0;
}

int Engine::release_prompt_cache() {
  if (busy()) return -1;
  model_.clear_caches();
  return 0;
}

int Engine::set_cross_attn(const RKLLMCrossAttnParam& param) {
  if (busy()) return -1;
  if (model_.init.extend.use_cross_attn == 0 || param.num_tokens <= 0 || param.encoder_k_cache == nullptr ||
      param.encoder_v_cache == nullptr || param.encoder_mask == nullptr || param.encoder_pos == nullptr) {
    model_.log.line("cross attention is not enabled or its params are incomplete");
    return -1;
  }
  return 0;
}

}  // namespace standin

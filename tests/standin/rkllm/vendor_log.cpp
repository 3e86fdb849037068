#include "vendor_log.h"

#include <cstdio>
#include <cstdlib>

#include "version.h"

namespace standin {

void VendorLog::line(const std::string& text) const {
  if (script_.log_silent) return;
  std::FILE* stream = script_.log_stderr ? stderr : stdout;
  std::fprintf(stream, "%s%s\n", script_.log_prefix ? "I rkllm: " : "", text.c_str());
}

void VendorLog::runtime() const {
  // Put together at run time: the number must not stand behind the words in the library's bytes unless the build says so.
  line("rkllm-runtime version: " + script_.runtime.value_or(kVersion) + ", rknpu driver version: " + script_.driver +
       ", platform: " + script_.platform);
}

void VendorLog::loading(const std::string& path) const { line("loading rkllm model from " + path); }

void VendorLog::toolkit() const {
  std::string text = "rkllm-toolkit version: " + script_.toolkit +
                     ", max_context_limit: " + std::to_string(script_.context_limit) +
                     ", npu_core_num: " + std::to_string(script_.npu_core_num) +
                     ", target_platform: " + script_.target_platform;
  if (script_.dtype) text += ", model_dtype: " + *script_.dtype;
  line(text);
}

void VendorLog::cpus(int count, uint32_t mask) const {
  if (mask == 0) mask = 0xF0;
  std::string list;
  int enabled = 0;
  for (int cpu = 0; cpu < 32; ++cpu) {
    if ((mask >> cpu & 1u) == 0) continue;
    list += (list.empty() ? "" : ", ") + std::to_string(cpu);
    ++enabled;
  }
  line("Enabled cpus: [" + list + "]");
  line("Enabled cpus num: " + std::to_string(count > 0 ? count : enabled));
}

void VendorLog::chat_template(const std::string& system, const std::string& prefix, const std::string& postfix) const {
  line("system_prompt: " + system);
  line("prompt_prefix: " + prefix);
  line("prompt_postfix: " + postfix);
}

int VendorLog::level() {
  const char* level = std::getenv("RKLLM_LOG_LEVEL");
  return level == nullptr ? 0 : std::atoi(level);
}

}  // namespace standin

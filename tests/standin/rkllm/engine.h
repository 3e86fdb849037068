// What stands behind a handle: the model, the run that may be going on, and the calls that touch either.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "abort_signal.h"
#include "model.h"
#include "request.h"
#include "run.h"

namespace standin {

class Engine {
 public:
  Engine(InitRequest init, Callbacks callbacks) : model_(std::move(init), callbacks) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  struct Loaded {
    int code;     // what rkllm_init returns
    bool usable;  // false: the caller's handle stays null, whatever the code
  };
  Loaded load();

  size_t batch() const { return model_.batch; }
  bool running() const { return running_; }
  int is_running_value() const { return running_ ? model_.script.is_running_value : 1 - model_.script.is_running_value; }

  int run(const RunRequest& request, bool async);
  int abort();
  void before_destroy();

  int clear_kv_cache(bool keep_system_prompt, const int* start, const int* end);
  int kv_cache_sizes(int* sizes) const;
  int set_chat_template(const std::string& system, const std::string& prefix, const std::string& postfix);
  int set_function_tools(const std::string& system, const std::string& tools);
  int load_lora(const std::string& path, const std::string& name, float scale);
  int load_prompt_cache(const std::string& path);
  int release_prompt_cache();
  int set_cross_attn(const RKLLMCrossAttnParam& param);

 private:
  Loaded failed(const std::string& line);
  bool busy();
  int work(Run& run, void* userdata);
  void call_late(void* userdata);

  Model model_;
  AbortSignal abort_;
  std::atomic<bool> running_{false};
  std::atomic<bool> in_prefill_{false};
  bool sticky_abort_ = false;
  std::thread worker_;                // of rkllm_run_async
  std::vector<std::thread> late_;     // callbacks after the end
};

}  // namespace standin

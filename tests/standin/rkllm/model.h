// A loaded model: what stays between runs. One thread uses it at a time (the engine sees to that).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "answer.h"
#include "board.h"
#include "kv_cache.h"
#include "request.h"
#include "script.h"
#include "vendor_log.h"

namespace standin {

struct Model {
  Model(InitRequest init_request, Callbacks given) : init(std::move(init_request)), callbacks(given) {}

  InitRequest init;
  Callbacks callbacks;
  Script script;
  VendorLog log{script};
  NpuMemory npu_memory;

  int max_context = 0;
  size_t batch = 1;
  std::vector<KvCache> caches;          // one per batch slot
  std::string cache_lora;               // the adapter the caches were made with
  std::optional<ChatTemplate> chat;     // none: prompts are used as they are
  std::map<std::string, float> loras;   // name -> scale

  struct Paused {
    std::vector<AnswerStream> answers;
    int keep_history = 0;
  };
  std::optional<Paused> paused;         // a callback returned 1

  int runs = 0;
  bool spoiled = false;                 // by an abort, until the caches are emptied by hand
  size_t turn = 0;                      // unconditional answers given so far
  std::vector<int32_t> last_prompt, last_answer;

  // The context a run may use.
  size_t room() const { return static_cast<size_t>(std::max(1, max_context - script.overflow_margin)); }

  void clear_caches() {
    for (KvCache& cache : caches) cache.clear();
    paused.reset();
  }
};

}  // namespace standin

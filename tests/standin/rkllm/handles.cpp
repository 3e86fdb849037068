#include "handles.h"

#include <map>
#include <mutex>

#include "delivery.h"
#include "loud.h"

namespace standin {
namespace {

struct Handles {
  std::mutex mutex;
  std::map<LLMHandle, std::unique_ptr<Engine>> engines;  // null: destroyed; the address is never used again
};

// Never destroyed: a run may outlive main.
Handles& handles() {
  static Handles& all = *new Handles;
  return all;
}

}  // namespace

void enter(const char* call) {
  if (inside_callback()) die(std::string(call) + " was called from inside a callback");
}

LLMHandle give_out(std::unique_ptr<Engine> engine) {
  std::lock_guard<std::mutex> lock(handles().mutex);
  LLMHandle handle = new char[16]();
  handles().engines[handle] = std::move(engine);
  return handle;
}

Engine& alive(LLMHandle handle, const char* call) {
  std::lock_guard<std::mutex> lock(handles().mutex);
  const auto found = handles().engines.find(handle);
  if (found == handles().engines.end()) die(std::string(call) + ": this handle was never given out");
  if (!found->second) die(std::string(call) + ": double free or use after rkllm_destroy");
  return *found->second;
}

std::unique_ptr<Engine> take_back(LLMHandle handle) {
  alive(handle, "rkllm_destroy");
  std::lock_guard<std::mutex> lock(handles().mutex);
  return std::move(handles().engines[handle]);
}

}  // namespace standin

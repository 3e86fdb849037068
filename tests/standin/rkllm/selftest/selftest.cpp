// Calls the stand-in as a C++ program would, for the sanitizers to watch: threads, pauses, batches, hidden states, late
// callbacks, two handles. Its argument is a directory for model files. Prints ok at the end.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../abi_1_3.h"

namespace selftest {

#define CHECK(condition) \
  if (!(condition)) std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition), std::exit(1)

struct Seen {
  std::string text;
  std::atomic<int> count{0};
  int finishes = 0, prefilled = 0, pause_at = -1, answer = 0;
  float first_hidden = 0;
};

int callback(RKLLMResult* result, void* userdata, LLMCallState state) {
  Seen& seen = *static_cast<Seen*>(userdata);
  if (state == RKLLM_RUN_FINISH) {
    ++seen.finishes;
    seen.prefilled = result->perf.prefill_tokens;
    return 0;
  }
  if (result->text != nullptr) seen.text += result->text;
  if (result->last_hidden_layer.hidden_states != nullptr) seen.first_hidden = result->last_hidden_layer.hidden_states[0];
  return seen.count++ == seen.pause_at ? 1 : seen.answer;
}

std::string directory;

LLMHandle load(const std::string& script, int batch = 1) {
  const std::string path = directory + "/selftest.rkllm";
  std::FILE* file = std::fopen(path.c_str(), "w");
  CHECK(file != nullptr);
  std::fprintf(file, "RKLLM-STANDIN 1\n{\"log\": {\"silent\": true}, %s}", script.c_str());
  std::fclose(file);
  RKLLMParam param = rkllm_createDefaultParam();
  CHECK(param.extend_param.n_batch == 1 && param.max_context_len == 512);
  param.model_path = path.c_str();
  param.extend_param.n_batch = static_cast<uint8_t>(batch);
  RKLLMCallback callbacks{callback, nullptr, nullptr, nullptr, nullptr, nullptr};
  LLMHandle handle = nullptr;
  CHECK(rkllm_init(&handle, &param, &callbacks) == 0 && handle != nullptr);
  CHECK(rkllm_set_chat_template(handle, "", "", "") == 0);
  return handle;
}

RKLLMInput prompt(const char* text) {
  RKLLMInput input{};
  input.role = "user";
  input.input_type = RKLLM_INPUT_PROMPT;
  input.prompt_input = text;
  return input;
}

int run(LLMHandle handle, const char* text, Seen& seen, RKLLMInferMode mode = RKLLM_INFER_GENERATE, int max_new = 0) {
  RKLLMInput input = prompt(text);
  RKLLMInferParam infer{};
  infer.mode = mode;
  infer.max_new_tokens = max_new;
  return rkllm_run(handle, &input, &infer, &seen);
}

void reuse_and_pause() {
  LLMHandle handle = load("\"answers\": [\"one two three\"]");
  Seen first, second, paused, resumed;
  CHECK(run(handle, "a b c", first) == 0 && first.text == "one two three" && first.prefilled == 3 && first.finishes == 1);
  second.answer = 2;
  CHECK(run(handle, "a b c d", second) == 0 && second.prefilled == 1 && second.text == "one two three");
  paused.pause_at = 0;
  CHECK(run(handle, "x", paused) == 0 && paused.text == "one" && paused.finishes == 0);
  CHECK(run(handle, "y", resumed) == 0 && resumed.text == " two three");
  CHECK(rkllm_destroy(handle) == 0);
}

void abort_from_another_thread() {
  LLMHandle handle = load("\"token_us\": 50, \"answers\": [{\"events\": [\"la\"], \"repeat\": -1, \"ignore_limits\": true}]");
  for (int round = 0; round < 5; ++round) {
    Seen seen;
    std::thread other([&] {
      while (seen.count < 5) std::this_thread::yield();
      CHECK(rkllm_is_running(handle) == 1);
      CHECK(rkllm_abort(handle) == 0);
    });
    CHECK(run(handle, "x", seen) == 0);
    other.join();
    CHECK(seen.finishes == 1 && seen.count >= 5);
  }
  CHECK(rkllm_is_running(handle) == 0 && rkllm_abort(handle) == -1);
  CHECK(rkllm_destroy(handle) == 0);
}

void async_and_late() {
  LLMHandle handle = load("\"late_callbacks\": 2, \"token_us\": 200, \"answers\": [\"a b c\"]");
  Seen seen, refused;
  RKLLMInput input = prompt("x");
  RKLLMInferParam infer{};
  CHECK(rkllm_run_async(handle, &input, &infer, &seen) == 0);
  std::memset(static_cast<void*>(&input), 0, sizeof input);
  CHECK(run(handle, "y", refused) == -1 && refused.count == 0);
  while (rkllm_is_running(handle) == 1) std::this_thread::yield();
  CHECK(rkllm_destroy(handle) == 0);  // waits for the late callbacks
  CHECK(seen.text == "a b clatelate" && seen.finishes == 1);
}

void batches_and_states() {
  LLMHandle handle = load("\"embd\": 8, \"answers\": [\"p q\", \"r\"]", 2);
  Seen seen;
  RKLLMInput inputs[2] = {prompt("left"), prompt("right")};
  RKLLMInferParam infer{};
  CHECK(rkllm_run(handle, inputs, &infer, &seen) == 0 && seen.finishes == 1);
  int sizes[2] = {0, 0};
  CHECK(rkllm_get_kv_cache_size(handle, sizes) == 0 && sizes[0] == 3 && sizes[1] == 2);
  CHECK(rkllm_destroy(handle) == 0);

  handle = load("\"embd\": 8, \"vocab\": 600");
  Seen hidden, logits;
  CHECK(run(handle, "A", hidden, RKLLM_INFER_GET_LAST_HIDDEN_LAYER) == 0 && hidden.first_hidden == 65 * 31 / 1024.0f - 1);
  CHECK(run(handle, "A", logits, RKLLM_INFER_GET_LOGITS) == 0 && logits.finishes == 1);
  CHECK(rkllm_destroy(handle) == 0);
}

void context_shift() {
  LLMHandle handle = load("\"context_limit\": 512, \"answers\": [{\"events\": [[7, \"x\"]], \"repeat\": -1}]");
  Seen seen;
  CHECK(run(handle, "a b", seen, RKLLM_INFER_GENERATE, 700) == 0);
  CHECK(seen.text.find("<<context shifted>>") != std::string::npos);
  CHECK(rkllm_destroy(handle) == 0);
}

// Callbacks per second without any delay: the relay must be the bottleneck, not this library.
double rate() {
  LLMHandle handle = load("\"answers\": [{\"events\": [[7, \" word\"]], \"repeat\": -1}], \"context_limit\": 900000");
  Seen seen;
  constexpr int kTokens = 400;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) CHECK(run(handle, "x", seen, RKLLM_INFER_GENERATE, kTokens) == 0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CHECK(rkllm_destroy(handle) == 0);
  return 50 * kTokens / took.count();
}

}  // namespace selftest

int main(int count, char** arguments) {
  using namespace selftest;
  CHECK(count == 2);
  directory = arguments[1];
  reuse_and_pause();
  abort_from_another_thread();
  async_and_late();
  batches_and_states();
  context_shift();
  std::printf("%.0f callbacks/s\nok\n", rate());
  return 0;
}

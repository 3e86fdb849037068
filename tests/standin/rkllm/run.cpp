#include "run.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "call_log.h"
#include "checksum.h"
#include "clock.h"
#include "faults.h"
#include "loud.h"
#include "prompt_cache.h"
#include "tokenizer.h"
#include "version.h"

namespace standin {
namespace {

const char* const kEndNames[] = {"none", "eos", "limit", "abort", "pause", "error"};

JsonLine describe(const Sampling& sampling) {
  JsonLine line;
  line.integer("top_k", sampling.top_k).number("top_p", sampling.top_p).number("temperature", sampling.temperature);
  line.number("repeat_penalty", sampling.repeat_penalty).number("frequency_penalty", sampling.frequency_penalty);
  line.number("presence_penalty", sampling.presence_penalty).integer("mirostat", sampling.mirostat);
  line.number("mirostat_tau", sampling.mirostat_tau).number("mirostat_eta", sampling.mirostat_eta);
  return line;
}

// The process's peak, as the vendor reports it.
double peak_memory_mb() {
  double kb = 0;
  std::FILE* status = std::fopen("/proc/self/status", "r");
  if (status == nullptr) return 0;
  char line[256];
  while (std::fgets(line, sizeof line, status) != nullptr && std::sscanf(line, "VmHWM: %lf", &kb) != 1) {
  }
  std::fclose(status);
  return kb / 1024;
}

// A toolkit version unlike the runtime's, as far as both are numbers.
bool versions_differ(const std::string& toolkit, const std::string& runtime) {
  int a[3] = {0, 0, 0}, b[3] = {0, 0, 0};
  if (std::sscanf(toolkit.c_str(), "%d.%d.%d", &a[0], &a[1], &a[2]) != 3) return false;
  std::sscanf(runtime.c_str(), "%d.%d.%d", &b[0], &b[1], &b[2]);
  return !std::equal(a, a + 3, b);
}

// What a model says on a runtime it was not made for.
const Answer& garbage() {
  static const Answer answer = [] {
    Answer made;
    made.events.resize(1);
    made.events[0].kind = Event::Kind::Token;
    made.events[0].id = '!';
    made.events[0].bytes = "!";
    made.repeat = -1;
    return made;
  }();
  return answer;
}

// The time the NPU takes for each token. Every wait is late by 50 us or so, which a benchmark would see: what one wait
// overslept, the next is shorter.
class Pace {
 public:
  Pace(AbortSignal& abort, double token_us) : abort_(abort), token_us_(token_us), slack_(prctl(PR_GET_TIMERSLACK)) {
    prctl(PR_SET_TIMERSLACK, 1UL);
  }
  ~Pace() { prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(std::max(1, slack_))); }
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

  // Whether an abort came due.
  bool wait() {
    if (token_us_ <= 0) return abort_.due();
    const double wanted_us = token_us_ - overslept_us_;
    const int64_t begin = now_ns();
    const bool due = abort_.wait_us(wanted_us);
    overslept_us_ = std::clamp(static_cast<double>(now_ns() - begin) / 1e3 - wanted_us, 0.0, token_us_);
    return due;
  }

 private:
  AbortSignal& abort_;
  double token_us_;
  int slack_;
  double overslept_us_ = 0;
};

}  // namespace

Run::Run(Model& model, AbortSignal& abort, std::atomic<bool>& in_prefill, const RunRequest& request)
    : model_(model),
      abort_(abort),
      in_prefill_(in_prefill),
      request_(request),
      slots_(request.inputs.size()),
      delivery_(model.callbacks.result, request.userdata != nullptr ? request.userdata : model.callbacks.userdata,
                request.inputs.size()) {
  if (slots_.size() != model.batch) die("a run needs one input per batch slot");
  limit_ = request.max_new_tokens > 0 ? request.max_new_tokens : model.init.max_new_tokens;
  if (limit_ <= 0) limit_ = model.max_context;
}

int Run::refuse(const std::string& line) {
  if (!line.empty()) model_.log.line(line);
  JsonLine end;
  log_call("run_refused", end.text("line", line).integer("return", -1));
  return -1;
}

int Run::prepare() {
  ++model_.runs;
  resumes_ = model_.paused.has_value();
  JsonLine line;
  line.integer("mode", request_.mode).integer("keep_history", request_.keep_history);
  line.integer("max_new_tokens", request_.max_new_tokens).boolean("resumes", resumes_);
  line.object("sampling", describe(request_.sampling.value_or(model_.init.sampling)));
  line.boolean("sampling_given", request_.sampling.has_value());
  line.text_or_null("lora", request_.lora ? request_.lora->c_str() : nullptr);
  line.text_or_null("prompt_cache_path", request_.prompt_cache_path ? request_.prompt_cache_path->c_str() : nullptr);
  line.boolean("save_prompt_cache", request_.save_prompt_cache);
  line.integer("userdata", static_cast<int64_t>(reinterpret_cast<intptr_t>(request_.userdata)));
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const bool continues = model_.caches[slot].size() > 0 && (request_.keep_history != 0 || resumes_);
    prompts_.push_back(encode(model_, request_.inputs[slot], continues));
    const std::string key = slot == 0 ? "input" : "input" + std::to_string(slot);
    line.object(key.c_str(), prompts_[slot].log);
  }
  log_call("rkllm_run", line);
  if (VendorLog::level() >= 2) model_.log.line("prompt: " + prompts_[0].text);

  if (request_.mode < RKLLM_INFER_GENERATE || request_.mode > RKLLM_INFER_GET_LOGITS) die("unknown mode in RKLLMInferParam");
  if (request_.keep_history != 0 && request_.keep_history != 1) {
    die("keep_history is " + std::to_string(request_.keep_history) + ": RKLLMInferParam has another layout here");
  }
  if (request_.lora && model_.loras.count(*request_.lora) == 0) return refuse("lora adapter is not loaded: " + *request_.lora);
  for (const Encoded& prompt : prompts_) {
    if (!prompt.ok) return refuse("");
    if (prompt.ids.empty()) return refuse("input is empty");
    if (prompt.ids.size() <= model_.room()) continue;
    if (model_.script.overflow_callback) delivery_.send(RKLLM_RUN_ERROR);
    return refuse("prompt gather than max context (prompt: " + std::to_string(prompt.ids.size()) +
                  " tokens, max context: " + std::to_string(model_.room()) + ")");
  }
  return 0;
}

Question Run::question(size_t slot) const {
  const Encoded& prompt = prompts_[slot];
  return {prompt.text,   prompt.ids,   prompt.type, request_.lora.value_or(""),
          prompt.images, describe(request_.sampling.value_or(model_.init.sampling)).str(), model_.runs};
}

bool Run::reuse_allowed(const Encoded& encoded) const {
  const Script& script = model_.script;
  if (model_.cache_lora != request_.lora.value_or("") && !script.reuse_across_lora) return false;
  if (encoded.type == "prompt") return script.reuse_prompt;
  if (encoded.type == "token") return script.reuse_token;
  return script.reuse_multimodal;
}

// Before a token enters a full cache: the context shifts, and the answer shows it.
void Run::make_room(size_t slot) {
  KvCache& cache = model_.caches[slot];
  if (cache.size() < model_.room()) return;
  const int n_keep = model_.init.n_keep;
  const size_t keep = n_keep < 0 ? prompts_[slot].ids.size() : static_cast<size_t>(n_keep);
  const size_t dropped = cache.shift(keep);
  JsonLine line;
  log_call("context_shift", line.integer("dropped", static_cast<int64_t>(dropped)).integer("keep", static_cast<int64_t>(keep)));
  if (model_.script.shift_mark.empty()) return;
  delivery_.token(slot, 0, model_.script.shift_mark);
  delivery_.send(RKLLM_RUN_NORMAL);
}

bool Run::fill_caches() {
  const bool lost = resumes_ && !model_.script.pause_keeps_cache;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    KvCache& cache = model_.caches[slot];
    const std::vector<int32_t>& ids = prompts_[slot].ids;
    if (lost) cache.clear();
    const bool whole = ids.size() >= cache.size() && std::equal(cache.ids().begin(), cache.ids().end(), ids.begin());
    const bool append = request_.keep_history != 0 || (resumes_ && !whole);
    slots_[slot].prefill = append ? cache.append(ids)
                                  : cache.replace(ids, reuse_allowed(prompts_[slot]), model_.script.reuse_after_edit);
    while (cache.size() > model_.room()) make_room(slot);
  }
  model_.cache_lora = request_.lora.value_or("");
  return ask_for_embeddings();
}

bool Run::ask_for_embeddings() {
  if (model_.callbacks.embed == nullptr) return true;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    std::vector<int32_t> ids = prompts_[slot].ids;
    ids.erase(ids.begin(), ids.begin() + static_cast<long>(slots_[slot].prefill.reused));
    std::vector<float> embed(ids.size() * static_cast<size_t>(model_.script.embd));
    const uint64_t bytes = embed.size() * sizeof(float);
    if (model_.callbacks.embed(model_.callbacks.embed_userdata, ids.data(), ids.size(), embed.data(), bytes) != 0) {
      model_.log.line("embed callback failed");
      return false;
    }
    JsonLine line;
    log_call("embed_callback", line.ids("ids", ids).integer("crc32", crc32(embed.data(), bytes)));
  }
  return true;
}

bool Run::save_prompt_cache() {
  if (!request_.save_prompt_cache || !request_.prompt_cache_path) return true;
  if (const Fault* fault = fault_due(model_.script, FaultPlace::SaveCache, 0, prompts_[0].text)) {
    cut_prompt_cache(*request_.prompt_cache_path);
    strike(fault->kind);
  }
  if (model_.script.prompt_cache == "silent") return true;
  if (model_.script.prompt_cache != "refuse" && write_prompt_cache(*request_.prompt_cache_path, model_.caches[0].ids())) {
    return true;
  }
  model_.log.line("save prompt cache failed: not supported by this model");
  return false;
}

Run::End Run::prefill() {
  in_prefill_ = true;
  started_ns_ = now_ns();
  const Fault* fault = fault_due(model_.script, FaultPlace::Prefill, 0, prompts_[0].text);
  if (fault != nullptr) {
    strike(fault->kind);
    model_.log.line(fault->kind == FaultKind::Submit ? "failed to submit!" : "matmul(w8a8) run failed");
    return End::Error;
  }
  if (!fill_caches()) return End::Error;
  size_t computed = 0;
  for (const Slot& slot : slots_) computed += slot.prefill.computed;
  if (abort_.wait_us(model_.script.prefill_us * static_cast<double>(computed)) && aborted(End::None) == End::Abort) {
    for (size_t slot = 0; slot < slots_.size(); ++slot) model_.caches[slot].truncate(slots_[slot].prefill.reused);
    return End::Abort;
  }
  in_prefill_ = false;
  prefilled_ns_ = now_ns();
  return save_prompt_cache() ? End::None : End::Error;
}

// The abort is due: what comes of it.
Run::End Run::aborted(End otherwise) {
  if (!abort_.due()) return otherwise;
  if (model_.script.abort_effect == "hang_run") strike(FaultKind::Hang);
  return End::Abort;
}

void Run::feed_last(size_t slot) {
  if (!slots_[slot].has_last) return;
  make_room(slot);
  model_.caches[slot].push(slots_[slot].last);
  slots_[slot].has_last = false;
}

// A token given by its id may tell the time: when the run began, and now.
std::string Run::clocked(const std::string& bytes) const {
  if (bytes.find("{{") == std::string::npos) return bytes;
  std::string out = bytes;
  const std::pair<const char*, int64_t> clocks[] = {{"{{began}}", started_ns_}, {"{{now}}", now_ns()}};
  for (const auto& [mark, ns] : clocks) {
    if (const size_t at = out.find(mark); at != std::string::npos) out.replace(at, std::strlen(mark), std::to_string(ns));
  }
  return out;
}

Run::End Run::show(size_t slot, const Event& event, LLMCallState& state) {
  Slot& s = slots_[slot];
  if (event.null_text) {
    delivery_.token_without_text(slot, event.id);
  } else if (model_.init.skip_special_token && is_special(model_.script, event.id)) {
    delivery_.token(slot, event.id, "");
  } else {
    delivery_.token(slot, event.id, clocked(event.bytes));
  }
  state = event.state.value_or(RKLLM_RUN_NORMAL);
  s.last = event.id;
  s.has_last = true;
  ++s.generated;
  return state == RKLLM_RUN_ERROR ? End::Error : End::None;
}

// Samples the next token of a slot: shown in the delivery, or the slot ends.
Run::End Run::step(size_t slot, LLMCallState& state) {
  Slot& s = slots_[slot];
  const Script& script = model_.script;
  if (s.generated >= limit_ && !s.answer.ignores_limits()) return End::Limit;
  feed_last(slot);
  for (bool again = false;;) {
    const Event* event = s.answer.next();
    if (event == nullptr) {
      if (!model_.init.ignore_eos_token || again) return End::Eos;
      s.answer.restart();
      again = true;
      continue;
    }
    if (event->delay_us > 0 && abort_.wait_us(event->delay_us) && aborted(End::None) == End::Abort) return End::Abort;
    if (event->kind == Event::Kind::Log) {
      if (!event->bytes.empty()) model_.log.line(event->bytes);
    } else if (event->kind == Event::Kind::Fault) {
      strike(event->fault);
      model_.log.line(event->fault == FaultKind::Submit ? "failed to submit!" : "matmul(w8a8) run failed");
      return End::Error;
    } else {
      const bool eos = std::find(script.eos.begin(), script.eos.end(), event->id) != script.eos.end();
      if (!eos || model_.init.ignore_eos_token || s.answer.ignores_limits()) return show(slot, *event, state);
      if (script.eos_event) {
        show(slot, *event, state);
        delivery_.send(RKLLM_RUN_NORMAL);
        s.has_last = false;
        --s.generated;
      }
      return End::Eos;
    }
  }
}

Run::End Run::answer_of_callback(int answer) {
  if (answer == 1) return End::Pause;
  return aborted(End::None);
}

Run::End Run::decode() {
  const bool stranger = model_.spoiled || (model_.script.mismatch == "garbage" &&
                        versions_differ(model_.script.toolkit, model_.script.runtime.value_or(kVersion)));
  if (resumes_ && model_.paused->answers.size() == slots_.size()) {
    for (size_t slot = 0; slot < slots_.size(); ++slot) slots_[slot].answer = std::move(model_.paused->answers[slot]);
  } else {
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const Question asked = question(slot);
      const Answer& answer = stranger ? garbage() : choose_answer(model_.script, asked, model_.turn++);
      slots_[slot].answer = AnswerStream(model_.script, answer, asked);
    }
    model_.last_prompt = prompts_[0].ids;
    model_.last_answer = slots_[0].answer.ids();
  }
  model_.paused.reset();

  Pace pace(abort_, model_.script.token_us);
  const bool faulty = !model_.script.faults.empty();
  size_t left = slots_.size();
  for (long number = 0;; ++number) {
    if (faulty) {
      if (const Fault* fault = fault_due(model_.script, FaultPlace::Token, number, prompts_[0].text)) {
        strike(fault->kind);
        model_.log.line(fault->kind == FaultKind::Submit ? "failed to submit!" : "matmul(w8a8) run failed");
        return End::Error;
      }
    }
    if (pace.wait() && aborted(End::None) == End::Abort) return End::Abort;
    LLMCallState state = RKLLM_RUN_NORMAL;
    End last = End::None;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (!slots_[slot].ended) {
        LLMCallState own = RKLLM_RUN_NORMAL;
        last = step(slot, own);
        if (last == End::Abort) return last;
        state = std::max(state, own);
        if (last == End::Eos || last == End::Limit) {
          slots_[slot].ended = true;
          --left;
        }
        if (last == End::Error && own != RKLLM_RUN_ERROR) return last;
      }
      if (slots_[slot].ended) delivery_.token_without_text(slot, -1);
    }
    if (left == 0) return last == End::None ? End::Eos : last;
    const End after = answer_of_callback(delivery_.send(state));
    if (state == RKLLM_RUN_ERROR) {
      error_shown_ = true;
      return End::Error;
    }
    if (after == End::Pause) {
      Model::Paused paused;
      for (size_t slot = 0; slot < slots_.size(); ++slot) {
        feed_last(slot);
        paused.answers.push_back(std::move(slots_[slot].answer));
      }
      paused.keep_history = request_.keep_history;
      model_.paused = std::move(paused);
    }
    if (after != End::None) return after;
  }
}

// The id that GENERATE would sample after this prompt.
int32_t Run::next_after(const Encoded& encoded) const {
  const std::vector<int32_t>&asked = model_.last_prompt, &answered = model_.last_answer, &ids = encoded.ids;
  int32_t next = model_.script.eos.empty() ? 0 : model_.script.eos[0];
  if (!asked.empty() && ids.size() >= asked.size() && ids.size() - asked.size() <= answered.size() &&
      std::equal(asked.begin(), asked.end(), ids.begin()) &&
      std::equal(ids.begin() + static_cast<long>(asked.size()), ids.end(), answered.begin())) {
    const size_t done = ids.size() - asked.size();
    if (done < answered.size()) next = answered[done];
  } else {
    const Question given = question(0);
    const std::vector<int32_t> fresh = AnswerStream(model_.script, choose_answer(model_.script, given, model_.turn), given).ids();
    if (!fresh.empty()) next = fresh[0];
  }
  return model_.script.logits_agree ? next : next + 1;
}

// README.md has the formulas, for tests to work out the same.
std::vector<float> Run::rows(size_t slot, bool logits, int width) const {
  const std::vector<int32_t>& ids = model_.caches[slot].ids();
  const std::string& which = model_.script.hidden_rows;
  size_t from = 0;
  if (!logits && which == "new") from = ids.size() - slots_[slot].prefill.computed;
  if (!logits && which == "last") from = ids.size() - 1;
  std::vector<float> out;
  out.reserve((ids.size() - from) * static_cast<size_t>(width));
  for (size_t t = from; t < ids.size(); ++t) {
    const auto id = static_cast<uint32_t>(ids[t]), position = static_cast<uint32_t>(t);
    for (uint32_t j = 0; j < static_cast<uint32_t>(width); ++j) {
      out.push_back(logits ? static_cast<float>((id * 13u + position * 7u + j * 5u) % 1000u) / 100.0f
                           : static_cast<float>((id * 31u + position * 17u + j * 7u) % 2048u) / 1024.0f - 1.0f);
    }
  }
  if (!logits && model_.script.hidden_values == "zero") std::fill(out.begin(), out.end(), 0.0f);
  if (!logits && model_.script.hidden_values == "nan") out[out.size() - 1] = std::nanf("");
  if (logits) {
    const int32_t next = next_after(prompts_[slot]);
    if (next >= 0 && next < width) out[out.size() - static_cast<size_t>(width) + static_cast<size_t>(next)] = 100.0f;
  }
  return out;
}

Run::End Run::states() {
  const bool logits = request_.mode == RKLLM_INFER_GET_LOGITS;
  model_.paused.reset();
  if (!logits && model_.script.hidden_empty_first && delivery_.send(RKLLM_RUN_NORMAL) == 1) return End::Pause;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const int width = logits ? model_.script.vocab : model_.script.embd;
    if (logits) {
      delivery_.logits(slot, rows(slot, true, width), width);
    } else {
      std::vector<float> all = rows(slot, false, width);
      const auto row = static_cast<std::ptrdiff_t>(width);
      for (; model_.script.hidden_split && static_cast<std::ptrdiff_t>(all.size()) > row; all.erase(all.begin(), all.begin() + row)) {
        delivery_.hidden(slot, std::vector<float>(all.begin(), all.begin() + row), width);
        delivery_.send(RKLLM_RUN_NORMAL);
      }
      delivery_.hidden(slot, std::move(all), width);
    }
  }
  const End after = answer_of_callback(delivery_.send(RKLLM_RUN_NORMAL));
  if (after == End::Pause) model_.paused = Model::Paused{{}, request_.keep_history};
  return after == End::None ? End::Eos : after;
}

int Run::finish(End end) {
  const Script& script = model_.script;
  const int64_t now = now_ns();
  if (prefilled_ns_ == 0) prefilled_ns_ = now;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (script.feed_last && end != End::Error) feed_last(slot);
    RKLLMPerfStat perf{};
    perf.prefill_time_ms = static_cast<float>(static_cast<double>(prefilled_ns_ - started_ns_) / 1e6);
    perf.prefill_tokens = static_cast<int>(slots_[slot].prefill.computed);
    perf.generate_time_ms = static_cast<float>(static_cast<double>(now - prefilled_ns_) / 1e6);
    perf.generate_tokens = static_cast<int>(slots_[slot].generated);
    perf.memory_usage_mb = static_cast<float>(script.memory_mb ? *script.memory_mb : peak_memory_mb());
    delivery_.perf(slot, perf);
    // Not a token, but the last one's id is still there, as in a buffer that is used again.
    delivery_.token_without_text(slot, slots_.size() > 1 ? -1 : slots_[slot].last);
  }
  int code = 0;
  LLMCallState state = end == End::Error ? RKLLM_RUN_ERROR : RKLLM_RUN_FINISH;
  if (end == End::Error) {
    code = -1;
    model_.clear_caches();
  } else if (end == End::Abort) {
    code = script.abort_return;
    if (script.abort_state == "error") state = RKLLM_RUN_ERROR;
  }
  JsonLine line;
  line.text("end", kEndNames[static_cast<int>(end)]).integer("return", code);
  line.integer("prefilled", static_cast<int64_t>(slots_[0].prefill.computed));
  line.integer("reused", static_cast<int64_t>(slots_[0].prefill.reused));
  line.integer("generated", slots_[0].generated);
  line.integer("cache", static_cast<int64_t>(model_.caches[0].size()));
  if (VendorLog::level() >= 1) {
    char timing[96];
    std::snprintf(timing, sizeof timing, " Prefill       %.2f         %zu", static_cast<double>(prefilled_ns_ - started_ns_) / 1e6,
                  slots_[0].prefill.computed);
    model_.log.line(timing);
  }
  if (end == End::Abort && script.after_abort == "cleared") model_.clear_caches();
  if (end == End::Abort && script.after_abort == "spoiled") model_.spoiled = true;
  const bool silent = end == End::Pause || error_shown_ || (end == End::Abort && script.abort_state == "none");
  if (!silent) {
    delivery_.send(state);
  }
  log_call("run_end", line);
  return code;
}

int Run::execute() {
  const NpuTurn turn;
  if (!turn.granted()) return refuse("failed to submit!");
  End end = prefill();
  if (end == End::None) end = request_.mode == RKLLM_INFER_GENERATE ? decode() : states();
  in_prefill_ = false;
  return finish(end);
}

}  // namespace standin

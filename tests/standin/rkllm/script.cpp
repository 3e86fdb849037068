#include "script.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <stdexcept>

#include "json.h"
#include "loud.h"
#include "version.h"

namespace standin {
namespace {

constexpr char kMagic[] = "RKLLM-STANDIN 1\n";
constexpr size_t kMaxScript = 64u << 20;  // a model file may be padded with NULs to any size; its script ends at the first

// Takes known keys out of an object and refuses what is left.
class Keys {
 public:
  Keys(const Json& object, std::string where) : values_(object.object()), where_(std::move(where)) {}

  const Json* find(const char* key) {
    known_.insert(key);
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }

  void take(const char* key, bool& into) {
    if (const Json* value = find(key)) into = value->boolean();
  }
  void take(const char* key, double& into) {
    if (const Json* value = find(key)) into = value->number();
  }
  void take(const char* key, int& into) {
    if (const Json* value = find(key)) into = static_cast<int>(value->number());
  }
  void take(const char* key, long& into) {
    if (const Json* value = find(key)) into = static_cast<long>(value->number());
  }
  void take(const char* key, std::string& into) {
    if (const Json* value = find(key)) into = value->string();
  }
  void take(const char* key, std::vector<int32_t>& into) {
    const Json* value = find(key);
    if (value == nullptr) return;
    into.clear();
    for (const Json& item : value->array()) into.push_back(static_cast<int32_t>(item.number()));
  }
  template <typename T>
  void take(const char* key, std::optional<T>& into) {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (value->is(Json::Kind::Null)) {
      into.reset();
      return;
    }
    T taken{};
    take(key, taken);
    into = taken;
  }
  void choose(const char* key, std::string& into, const std::vector<const char*>& allowed) {
    take(key, into);
    if (std::find(allowed.begin(), allowed.end(), into) == allowed.end()) {
      throw std::runtime_error(where_ + ": " + key + " cannot be '" + into + "'");
    }
  }
  void done() const {
    for (const auto& [key, value] : values_) {
      (void)value;
      if (known_.count(key) == 0) throw std::runtime_error(where_ + ": unknown key '" + key + "'");
    }
  }

 private:
  const std::map<std::string, Json>& values_;
  std::string where_;
  std::set<std::string> known_;
};

FaultKind fault_kind(const std::string& name) {
  static const std::map<std::string, FaultKind> kinds{
      {"segv", FaultKind::Segv},         {"abort", FaultKind::Abort}, {"hang", FaultKind::Hang},
      {"hang_deaf", FaultKind::HangDeaf}, {"stop", FaultKind::Stop},   {"exit", FaultKind::Exit},
      {"submit", FaultKind::Submit},     {"matmul", FaultKind::Matmul}};
  const auto found = kinds.find(name);
  if (found == kinds.end()) throw std::runtime_error("unknown fault '" + name + "'");
  return found->second;
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t at = 0; at + 1 < digits.size(); at += 2) {
    bytes += static_cast<char>(std::stoul(digits.substr(at, 2), nullptr, 16));
  }
  return bytes;
}

LLMCallState state_named(const std::string& name) {
  static const std::map<std::string, LLMCallState> states{{"normal", RKLLM_RUN_NORMAL},
                                                          {"waiting", RKLLM_RUN_WAITING},
                                                          {"finish", RKLLM_RUN_FINISH},
                                                          {"error", RKLLM_RUN_ERROR}};
  const auto found = states.find(name);
  if (found == states.end()) throw std::runtime_error("unknown state '" + name + "'");
  return found->second;
}

Event read_event(const Json& json) {
  Event event;
  if (json.is(Json::Kind::String)) {
    event.bytes = json.string();
    return event;
  }
  if (json.is(Json::Kind::Array)) {
    const std::vector<Json>& pair = json.array();
    if (pair.size() != 2) throw std::runtime_error("a token is [id, text]");
    event.kind = Event::Kind::Token;
    event.id = static_cast<int32_t>(pair[0].number());
    event.null_text = pair[1].is(Json::Kind::Null);
    if (!event.null_text) event.bytes = pair[1].string();
    return event;
  }
  Keys keys(json, "event");
  if (const Json* id = keys.find("id")) {
    event.kind = Event::Kind::Token;
    event.id = static_cast<int32_t>(id->number());
    event.null_text = true;
  }
  if (const Json* text = keys.find("text")) {
    event.null_text = text->is(Json::Kind::Null);
    if (!event.null_text) event.bytes = text->string();
  }
  if (const Json* hex = keys.find("hex")) {
    event.kind = Event::Kind::Token;
    event.null_text = false;
    event.bytes = from_hex(hex->string());
  }
  if (const Json* state = keys.find("state")) {
    if (event.bytes.empty() && keys.find("text") == nullptr) event.null_text = true;
    event.kind = Event::Kind::Token;
    event.state = state_named(state->string());
  }
  if (const Json* log = keys.find("log")) {
    event.kind = Event::Kind::Log;
    event.bytes = log->string();
  }
  if (const Json* fault = keys.find("fault")) {
    event.kind = Event::Kind::Fault;
    event.fault = fault_kind(fault->string());
  }
  keys.take("delay_us", event.delay_us);
  keys.done();
  return event;
}

Answer read_answer(const Json& json) {
  Answer answer;
  if (json.is(Json::Kind::String)) {
    answer.events.push_back(read_event(json));
    return answer;
  }
  if (json.is(Json::Kind::Array)) {
    for (const Json& event : json.array()) answer.events.push_back(read_event(event));
    return answer;
  }
  Keys keys(json, "answer");
  keys.take("when", answer.when);
  keys.take("when_ids", answer.when_ids);
  keys.take("lora", answer.lora);
  keys.take("repeat", answer.repeat);
  keys.take("ignore_limits", answer.ignore_limits);
  if (const Json* events = keys.find("events")) {
    for (const Json& event : events->array()) answer.events.push_back(read_event(event));
  }
  keys.done();
  return answer;
}

Fault read_fault(const Json& json) {
  static const std::map<std::string, FaultPlace> places{{"load", FaultPlace::Load},
                                                        {"prefill", FaultPlace::Prefill},
                                                        {"token", FaultPlace::Token},
                                                        {"destroy", FaultPlace::Destroy},
                                                        {"abort", FaultPlace::Abort},
                                                        {"save_cache", FaultPlace::SaveCache},
                                                        {"load_cache", FaultPlace::LoadCache}};
  Keys keys(json, "fault");
  Fault fault;
  std::string at = "token", kind = "segv";
  keys.take("at", at);
  keys.take("kind", kind);
  const auto place = places.find(at);
  if (place == places.end()) throw std::runtime_error("fault: at cannot be '" + at + "'");
  fault.at = place->second;
  fault.kind = fault_kind(kind);
  keys.take("token", fault.token);
  keys.take("when", fault.when);
  keys.take("once", fault.once);
  keys.done();
  return fault;
}

void read_log(const Json& json, Script& script) {
  Keys keys(json, "log");
  std::string stream = "stdout";
  keys.choose("stream", stream, {"stdout", "stderr"});
  script.log_stderr = stream == "stderr";
  keys.take("prefix", script.log_prefix);
  keys.take("silent", script.log_silent);
  if (const Json* lines = keys.find("lines")) {
    for (const Json& line : lines->array()) script.log_lines.push_back(line.string());
  }
  keys.done();
}

void read_template(const Json& json, Script& script) {
  if (json.is(Json::Kind::Null)) {
    script.chat_template.reset();
    return;
  }
  Keys keys(json, "chat_template");
  ChatTemplate own;
  keys.take("system", own.system);
  keys.take("prefix", own.prefix);
  keys.take("postfix", own.postfix);
  keys.take("no_think", own.no_think);
  keys.done();
  script.chat_template = own;
}

void read_reuse(const Json& json, Script& script) {
  Keys keys(json, "reuse");
  keys.take("prompt", script.reuse_prompt);
  keys.take("token", script.reuse_token);
  keys.take("multimodal", script.reuse_multimodal);
  keys.take("after_edit", script.reuse_after_edit);
  keys.take("across_lora", script.reuse_across_lora);
  keys.done();
}

void read_abort(const Json& json, Script& script) {
  Keys keys(json, "abort");
  keys.take("ms", script.abort_ms);
  keys.take("prefill_ms", script.abort_prefill_ms);
  keys.choose("effect", script.abort_effect, {"stop", "ignored", "hang_run", "hang_call"});
  keys.choose("state", script.abort_state, {"finish", "error", "none"});
  keys.choose("cache", script.after_abort, {"keep", "cleared", "spoiled"});
  keys.take("return", script.abort_return);
  keys.choose("idle", script.abort_idle, {"refused", "ok", "sticky"});
  keys.done();
}

void read_vision(const Json& json, Script& script) {
  Keys keys(json, "vision");
  keys.take("embd", script.image_embd);
  keys.take("width", script.image_width);
  keys.take("height", script.image_height);
  keys.take("start", script.image_start);
  keys.take("end", script.image_end);
  keys.take("content", script.image_content);
  keys.done();
}

void read_all(const Json& json, Script& script) {
  Keys keys(json, "script");
  keys.take("runtime", script.runtime);
  keys.take("toolkit", script.toolkit);
  keys.take("platform", script.platform);
  keys.take("target_platform", script.target_platform);
  keys.take("driver", script.driver);
  keys.take("dtype", script.dtype);
  keys.take("npu_core_num", script.npu_core_num);
  if (const Json* log = keys.find("log")) read_log(*log, script);
  keys.take("context_limit", script.context_limit);
  keys.choose("mismatch", script.mismatch, {"garbage", "fine", "refuse"});
  keys.choose("init_error", script.init_error,
              {"", "driver_too_old", "model_too_old", "platform", "magic", "npu_memory", "silent"});
  keys.take("init_return", script.init_return);
  keys.choose("tokenizer", script.tokenizer, {"words", "bytes"});
  if (const Json* specials = keys.find("specials")) {
    script.specials.clear();
    for (const auto& [text, id] : specials->object()) script.specials[text] = static_cast<int32_t>(id.number());
  }
  keys.take("parse_specials", script.parse_specials);
  keys.take("bos", script.bos);
  keys.take("vocab", script.vocab);
  keys.take("eos", script.eos);
  keys.take("eos_event", script.eos_event);
  keys.choose("utf8", script.utf8, {"waiting_null", "waiting_partial", "split"});
  if (const Json* own = keys.find("chat_template")) read_template(*own, script);
  if (const Json* reuse = keys.find("reuse")) read_reuse(*reuse, script);
  keys.take("feed_last", script.feed_last);
  keys.take("pause_keeps_cache", script.pause_keeps_cache);
  keys.take("overflow_margin", script.overflow_margin);
  keys.take("overflow_callback", script.overflow_callback);
  keys.take("shift_mark", script.shift_mark);
  if (const Json* answers = keys.find("answers")) {
    for (const Json& answer : answers->array()) script.answers.push_back(read_answer(answer));
  }
  keys.take("load_ms", script.load_ms);
  keys.take("prefill_us", script.prefill_us);
  keys.take("token_us", script.token_us);
  keys.take("destroy_ms", script.destroy_ms);
  if (const Json* abort = keys.find("abort")) read_abort(*abort, script);
  keys.choose("busy", script.busy, {"refused", "submit"});
  keys.take("is_running_value", script.is_running_value);
  keys.take("late_callbacks", script.late_callbacks);
  keys.take("memory_mb", script.memory_mb);
  keys.take("npu_mb", script.npu_mb);
  keys.take("npu_domain_mb", script.npu_domain_mb);
  keys.choose("when_short", script.when_short, {"segv", "error"});
  keys.take("embd", script.embd);
  keys.take("hidden_empty_first", script.hidden_empty_first);
  keys.choose("hidden_rows", script.hidden_rows, {"all", "new", "last"});
  keys.choose("hidden_values", script.hidden_values, {"formula", "nan", "zero"});
  keys.take("hidden_split", script.hidden_split);
  keys.take("logits_agree", script.logits_agree);
  if (const Json* vision = keys.find("vision")) read_vision(*vision, script);
  keys.choose("prompt_cache", script.prompt_cache, {"ok", "refuse", "segv", "silent"});
  keys.choose("adapters", script.adapters, {"ok", "refuse", "segv"});
  if (const Json* faults = keys.find("faults")) {
    for (const Json& fault : faults->array()) script.faults.push_back(read_fault(fault));
  }
  keys.done();
}

}  // namespace

ModelFile read_script(const std::string& path, Script& into) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return ModelFile::Missing;
  std::string text;
  char block[65536];
  for (size_t count; text.size() < kMaxScript && (count = std::fread(block, 1, sizeof block, file)) > 0;) {
    text.append(block, count);
    if (text.find('\0', text.size() - count) != std::string::npos) break;
  }
  std::fclose(file);
  text.erase(std::min(text.find('\0'), text.size()));
  if (text.compare(0, sizeof kMagic - 1, kMagic) != 0) return ModelFile::NotAModel;
  into.toolkit = kVersion;
  into.chat_template = ChatTemplate{"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n", "<|im_start|>user\n",
                                    "<|im_end|>\n<|im_start|>assistant\n", ""};
  try {
    read_all(Json::parse(text.substr(sizeof kMagic - 1)), into);
  } catch (const std::exception& error) {
    die("the script in " + path + " is wrong: " + error.what());
  }
  return ModelFile::Read;
}

}  // namespace standin

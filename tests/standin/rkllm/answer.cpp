#include "answer.h"

#include <algorithm>

#include "tokenizer.h"
#include "utf8.h"

namespace standin {
namespace {

void fill_in(std::string& text, const std::string& name, const std::string& value) {
  const std::string mark = "{{" + name + "}}";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + value.size())) {
    text.replace(at, mark.size(), value);
  }
}

std::string filled_in(std::string text, const Question& question) {
  if (text.find("{{") == std::string::npos) return text;
  fill_in(text, "n_prompt", std::to_string(question.ids.size()));
  fill_in(text, "type", question.type);
  fill_in(text, "lora", question.lora);
  fill_in(text, "images", question.images);
  fill_in(text, "sampling", question.sampling);
  fill_in(text, "run", std::to_string(question.run));
  fill_in(text, "prompt", question.prompt);
  return text;
}

bool conditional(const Answer& answer) {
  return !answer.when.empty() || !answer.when_ids.empty() || !answer.lora.empty();
}

bool holds(const Answer& answer, const Question& question) {
  if (!answer.when.empty() && question.prompt.find(answer.when) == std::string::npos) return false;
  if (!answer.lora.empty() && answer.lora != question.lora) return false;
  return std::search(question.ids.begin(), question.ids.end(), answer.when_ids.begin(), answer.when_ids.end()) !=
             question.ids.end() ||
         answer.when_ids.empty();
}

// Cuts text into token events; a character that spans several is shown as the script's `utf8` says.
void add_tokens(const Script& script, const Event& text, const Question& question, std::vector<Event>& into) {
  double delay_us = text.delay_us;
  std::string pending;
  for (const Piece& piece : tokenize(script, filled_in(text.bytes, question), true)) {
    Event token;
    token.kind = Event::Kind::Token;
    token.id = piece.id;
    token.bytes = piece.bytes;
    token.delay_us = delay_us;
    delay_us = 0;
    pending += piece.bytes;
    if (utf8_incomplete(pending)) {
      if (script.utf8 != "split") token.state = RKLLM_RUN_WAITING;
      token.null_text = script.utf8 == "waiting_null";
    } else {
      if (script.utf8 == "waiting_null") token.bytes = pending;
      pending.clear();
    }
    into.push_back(std::move(token));
  }
  if (delay_us > 0) {  // no text: only a wait
    Event wait;
    wait.kind = Event::Kind::Log;
    wait.delay_us = delay_us;
    into.push_back(wait);
  }
}

}  // namespace

const Answer& choose_answer(const Script& script, const Question& question, size_t turn) {
  static const Answer fallback = [] {
    Answer answer;
    answer.events.resize(1);
    answer.events[0].bytes = "OK.";
    return answer;
  }();
  std::vector<const Answer*> plain;
  for (const Answer& answer : script.answers) {
    if (!conditional(answer)) {
      plain.push_back(&answer);
    } else if (holds(answer, question)) {
      return answer;
    }
  }
  return plain.empty() ? fallback : *plain[turn % plain.size()];
}

AnswerStream::AnswerStream(const Script& script, const Answer& answer, const Question& question)
    : left_(answer.repeat), ignore_limits_(answer.ignore_limits) {
  for (const Event& event : answer.events) {
    if (event.kind == Event::Kind::Text) {
      add_tokens(script, event, question, steps_);
    } else {
      steps_.push_back(event);
    }
  }
}

const Event* AnswerStream::next() {
  if (steps_.empty()) return nullptr;
  if (at_ == steps_.size()) {
    if (left_ > 0) --left_;
    at_ = 0;
  }
  if (left_ == 0) return nullptr;
  return &steps_[at_++];
}

std::vector<int32_t> AnswerStream::ids() const {
  std::vector<int32_t> ids;
  for (const Event& step : steps_) {
    if (step.kind == Event::Kind::Token) ids.push_back(step.id);
  }
  return ids;
}

}  // namespace standin

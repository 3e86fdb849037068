// The scripted answer of one run, as the tokens the model "samples" one after another.
#pragma once
#include <string>
#include <vector>

#include "script.h"

namespace standin {

// What is known of a run when its answer is chosen; scripted text may name these in double braces.
struct Question {
  std::string prompt;             // the text that reached the model; for ids: the ids in decimal, a space around each
  std::vector<int32_t> ids;
  std::string type, lora, images; // images: the checksum of each image in hexadecimal, commas between
  std::string sampling;           // as JSON
  int run = 0;                    // number of the run of this handle, from 1
};

// The answer for the question: the first whose conditions all hold, else the unconditional ones in turn.
const Answer& choose_answer(const Script& script, const Question& question, size_t turn);

class AnswerStream {
 public:
  AnswerStream() = default;
  AnswerStream(const Script& script, const Answer& answer, const Question& question);

  // The next step, or null at the end. The pointer is good until the stream dies.
  const Event* next();

  // From the beginning again: a model that may not stop says something more.
  void restart() { at_ = 0, left_ = 1; }

  bool ignores_limits() const { return ignore_limits_; }

  // The ids of one round of the answer.
  std::vector<int32_t> ids() const;

 private:
  std::vector<Event> steps_;  // without Text: that is cut into tokens
  size_t at_ = 0;
  long left_ = 1;
  bool ignore_limits_ = false;
};

}  // namespace standin

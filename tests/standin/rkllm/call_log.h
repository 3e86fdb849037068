// The log for tests: one JSON object a line, in the file that RKLLM_STANDIN_LOG names; without it nothing is written. Lines
// of several processes do not mix: each is one append.
#pragma once
#include "json.h"

namespace standin {

// Adds pid, thread and the monotonic time in ms.
void log_call(const char* call, const JsonLine& rest);

}  // namespace standin

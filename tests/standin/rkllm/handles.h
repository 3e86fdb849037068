// The handles that were given out. A call with one that is not alive ends the process with a word, where the real library
// would use freed memory.
#pragma once
#include <memory>

#include "engine.h"

namespace standin {

// Ends the process when this thread is inside a callback: the library's locks are held there.
void enter(const char* call);

LLMHandle give_out(std::unique_ptr<Engine> engine);
Engine& alive(LLMHandle handle, const char* call);
std::unique_ptr<Engine> take_back(LLMHandle handle);

}  // namespace standin

// The calls whose signatures do not depend on the layout, and what both layouts' calls share.
#pragma once
#include "handles.h"
#include "request.h"

namespace standin {

int open_model(LLMHandle* handle, InitRequest init, Callbacks callbacks);

int start(LLMHandle handle, const RunRequest& request, bool async);

Sampling default_sampling();
RKLLMExtendParam default_extend();

// A C string the library cannot do without.
const char* required_string(const char* text, const char* what);

// Whether the address holds code, read from /proc/self/maps.
bool is_code(const void* address);

}  // namespace standin

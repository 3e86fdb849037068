// A caller's (or a test's) mistake that the real library would answer with corrupted memory: say it and end the process.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

namespace standin {

[[noreturn]] inline void die(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "rkllm stand-in: %s\n", what.c_str());
  std::abort();
}

}  // namespace standin

#include "call_log.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "loud.h"

namespace standin {
namespace {

const char* log_path() {
  const char* path = std::getenv("RKLLM_STANDIN_LOG");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

}  // namespace

void log_call(const char* call, const JsonLine& rest) {
  const char* path = log_path();
  if (path == nullptr) return;
  JsonLine head;
  head.text("call", call);
  head.integer("pid", getpid());
  head.integer("thread", syscall(SYS_gettid));
  head.number("ms", static_cast<double>(now_ns()) / 1e6);
  std::string line = head.str();
  const std::string tail = rest.str();
  if (tail != "{}") line = line.substr(0, line.size() - 1) + ", " + tail.substr(1);
  line += '\n';
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    die(std::string("cannot write the call log ") + path);
  }
  close(file);
}

}  // namespace standin

#include "faults.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace standin {
namespace {

[[noreturn]] void sleep_for_ever() {
  for (;;) pause();
}

void write_through_null() {
  volatile uintptr_t nowhere = 0;
  *reinterpret_cast<volatile int*>(nowhere) = 1;
}

void ignore_polite_signals() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) signal(number, SIG_IGN);
}

}  // namespace

void strike(FaultKind kind) {
  switch (kind) {
    case FaultKind::Segv: write_through_null(); break;
    case FaultKind::Abort: std::abort();
    case FaultKind::Exit: std::exit(0);
    case FaultKind::Stop: raise(SIGSTOP); sleep_for_ever();
    case FaultKind::HangDeaf: ignore_polite_signals(); sleep_for_ever();
    case FaultKind::Hang: sleep_for_ever();
    case FaultKind::Submit:
    case FaultKind::Matmul: break;
  }
}

const Fault* fault_due(const Script& script, FaultPlace at, long token, const std::string& prompt) {
  for (const Fault& fault : script.faults) {
    if (fault.at != at || (at == FaultPlace::Token && fault.token != token)) continue;
    if (!fault.when.empty() && prompt.find(fault.when) == std::string::npos) continue;
    if (!fault.once.empty()) {
      const int file = open(fault.once.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
      if (file < 0) continue;
      close(file);
    }
    return &fault;
  }
  return nullptr;
}

}  // namespace standin

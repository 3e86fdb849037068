#include "board.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "loud.h"

namespace standin {
namespace {

std::string board_dir() {
  const char* dir = std::getenv("RKLLM_STANDIN_BOARD");
  return dir == nullptr ? "" : dir;
}

int open_locked(const std::string& path, int operation) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) die("cannot open " + path);
  if (flock(file, operation) == 0) return file;
  close(file);
  return -1;
}

// The sum of what living processes hold in the domain; records of dead ones are removed. Records are named
// mem-<pid>-<serial>-<domain>-<mb>, so that nothing has to be read.
double used_mb(const std::string& dir, int wanted_domain) {
  double sum = 0;
  DIR* listing = opendir(dir.c_str());
  if (listing == nullptr) die("no board directory " + dir);
  while (const dirent* entry = readdir(listing)) {
    int pid = 0, serial = 0, domain = 0;
    double mb = 0;
    if (std::sscanf(entry->d_name, "mem-%d-%d-%d-%lf", &pid, &serial, &domain, &mb) != 4) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) {
      unlink((dir + "/" + entry->d_name).c_str());
    } else if (domain == wanted_domain) {
      sum += mb;
    }
  }
  closedir(listing);
  return sum;
}

}  // namespace

NpuMemory::~NpuMemory() {
  if (!record_.empty()) unlink(record_.c_str());
}

bool NpuMemory::take(int domain, double mb, double domain_mb) {
  const std::string dir = board_dir();
  if (dir.empty()) return mb <= domain_mb;
  static std::atomic<int> serial{0};
  const int lock = open_locked(dir + "/mem.lock", LOCK_EX);
  const bool enough = used_mb(dir, domain) + mb <= domain_mb;
  if (enough) {
    char name[96];
    std::snprintf(name, sizeof name, "/mem-%d-%d-%d-%.1f", getpid(), serial++, domain, mb);
    record_ = dir + name;
    const int file = open(record_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) die("cannot write " + record_);
    close(file);
  }
  close(lock);
  return enough;
}

NpuTurn::NpuTurn() {
  const std::string dir = board_dir();
  if (dir.empty()) return;
  file_ = open_locked(dir + "/npu.lock", LOCK_EX | LOCK_NB);
  granted_ = file_ >= 0;
}

NpuTurn::~NpuTurn() {
  if (file_ >= 0) close(file_);
}

}  // namespace standin

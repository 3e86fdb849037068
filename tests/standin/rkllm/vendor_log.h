// The lines the vendor's library prints, on C stdout (block-buffered on a pipe, as there) or stderr.
#pragma once
#include "script.h"

namespace standin {

class VendorLog {
 public:
  explicit VendorLog(const Script& script) : script_(script) {}

  void line(const std::string& text) const;

  void runtime() const;
  void loading(const std::string& path) const;
  void toolkit() const;
  void cpus(int count, uint32_t mask) const;
  void chat_template(const std::string& system, const std::string& prefix, const std::string& postfix) const;

  // RKLLM_LOG_LEVEL: 0 by default, 1 prints timings, 2 the users' prompts as well.
  static int level();

 private:
  const Script& script_;
};

}  // namespace standin

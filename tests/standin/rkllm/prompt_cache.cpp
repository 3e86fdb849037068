#include "prompt_cache.h"

#include <cstdio>

#include "checksum.h"

namespace standin {

bool write_prompt_cache(const std::string& path, const std::vector<int32_t>& ids) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  const uint32_t sum = crc32(ids.data(), ids.size() * sizeof(int32_t));
  const bool headed = std::fprintf(file, "RKLLM-STANDIN-CACHE %zu %u\n", ids.size(), sum) > 0;
  const bool written = std::fwrite(ids.data(), sizeof(int32_t), ids.size(), file) == ids.size();
  return std::fclose(file) == 0 && headed && written;
}

void cut_prompt_cache(const std::string& path) {
  if (std::FILE* file = std::fopen(path.c_str(), "wb")) {
    std::fputs("RKLLM-STANDIN-CACHE 9", file);
    std::fclose(file);
  }
}

std::optional<std::vector<int32_t>> read_prompt_cache(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return std::nullopt;
  char head[80];
  size_t count = 0;
  unsigned sum = 0;
  std::optional<std::vector<int32_t>> ids;
  if (std::fgets(head, sizeof head, file) != nullptr &&
      std::sscanf(head, "RKLLM-STANDIN-CACHE %zu %u\n", &count, &sum) == 2 && count < (1u << 24)) {
    ids.emplace(count);
    if (std::fread(ids->data(), sizeof(int32_t), count, file) != count || crc32(ids->data(), count * sizeof(int32_t)) != sum) {
      ids.reset();
    }
  }
  std::fclose(file);
  return ids;
}

}  // namespace standin

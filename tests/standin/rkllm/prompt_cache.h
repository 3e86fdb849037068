// Prompt-cache files: the ids a cache held, behind a magic line.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace standin {

// Leaves what a save that did not come to its end leaves.
void cut_prompt_cache(const std::string& path);
bool write_prompt_cache(const std::string& path, const std::vector<int32_t>& ids);

// Nothing when the file is missing or not such a file.
std::optional<std::vector<int32_t>> read_prompt_cache(const std::string& path);

}  // namespace standin

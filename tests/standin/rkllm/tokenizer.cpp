#include "tokenizer.h"

#include <algorithm>
#include <cctype>

#include "utf8.h"

namespace standin {
namespace {

bool word_byte(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// The length of the plain token at `at`, not looking beyond `end`.
size_t plain_length(const Script& script, const std::string& text, size_t at, size_t end) {
  if (script.tokenizer == "bytes") return 1;
  size_t to = at + (text[at] == ' ' && at + 1 < end && word_byte(text[at + 1]) ? 1 : 0);
  if (word_byte(text[to])) {
    while (to < end && word_byte(text[to])) ++to;
    return to - at;
  }
  const size_t character = utf8_length(text, at);
  return character == 0 || at + character > end ? 1 : character;
}

// FNV-1a.
int32_t hashed_id(const std::string& bytes, int vocab) {
  uint32_t hash = 2166136261u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 512 + static_cast<int32_t>(hash % static_cast<uint32_t>(std::max(1, vocab - 512)));
}

// The longest control string at `at`; null for none.
const std::pair<const std::string, int32_t>* control_at(const Script& script, const std::string& text, size_t at) {
  const std::pair<const std::string, int32_t>* best = nullptr;
  for (const auto& special : script.specials) {
    const std::string& name = special.first;
    if (!name.empty() && text.compare(at, name.size(), name) == 0 && (best == nullptr || name.size() > best->first.size())) {
      best = &special;
    }
  }
  return best;
}

void add_plain(const Script& script, const std::string& text, size_t at, size_t end, std::vector<Piece>& into) {
  while (at < end) {
    const size_t length = plain_length(script, text, at, end);
    Piece piece{0, text.substr(at, length)};
    piece.id = length == 1 ? static_cast<unsigned char>(text[at]) : hashed_id(piece.bytes, script.vocab);
    into.push_back(std::move(piece));
    at += length;
  }
}

}  // namespace

std::vector<Piece> tokenize(const Script& script, const std::string& text, bool control) {
  std::vector<Piece> pieces;
  size_t plain = 0;
  for (size_t at = 0; control && at < text.size();) {
    const auto* special = control_at(script, text, at);
    if (special == nullptr) {
      ++at;
      continue;
    }
    add_plain(script, text, plain, at, pieces);
    pieces.push_back({special->second, special->first});
    plain = at += special->first.size();
  }
  add_plain(script, text, plain, text.size(), pieces);
  return pieces;
}

std::vector<Piece> tokenize(const Script& script, const std::string& text) {
  return tokenize(script, text, script.parse_specials);
}

bool is_special(const Script& script, int32_t id) {
  return std::any_of(script.specials.begin(), script.specials.end(), [id](const auto& s) { return s.second == id; });
}

}  // namespace standin

// UTF-8 by hand: what a character's bytes are, and whether they are all there yet.
#pragma once
#include <cstdint>
#include <string>

namespace standin {

// The number of bytes a character has whose first byte is this one; 1 for a byte that begins none.
inline size_t utf8_expected(unsigned char first) {
  if (first >= 0xF0 && first < 0xF8) return 4;
  if (first >= 0xE0) return first < 0xF0 ? 3 : 1;
  if (first >= 0xC0) return 2;
  return 1;
}

// The number of bytes of the whole character at `at`; 0 where there is none.
inline size_t utf8_length(const std::string& text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t length = utf8_expected(first);
  if (first >= 0x80 && length == 1) return 0;
  if (at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

// Whether these bytes begin a character that is not complete.
inline bool utf8_incomplete(const std::string& bytes) {
  return !bytes.empty() && utf8_expected(static_cast<unsigned char>(bytes[0])) > bytes.size();
}

inline void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

}  // namespace standin

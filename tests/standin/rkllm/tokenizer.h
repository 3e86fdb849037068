// The model's own tokenizer, for PROMPT and MULTIMODAL input and for scripted text. Simple, but with the property that
// matters: text cut at a token's edge gives the same tokens.
//   words  a word with the space before it is a token, as is any other character; ids by hash in [512, vocab), except that
//          a single ASCII character is its own code
//   bytes  a byte is a token, its value the id, so that characters are split over tokens
// Control strings of the script are one token each, where the script lets the tokenizer see them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "script.h"

namespace standin {

struct Piece {
  int32_t id;
  std::string bytes;
};

std::vector<Piece> tokenize(const Script& script, const std::string& text);

// `control` false: control strings are plain text, whatever the script says.
std::vector<Piece> tokenize(const Script& script, const std::string& text, bool control);

bool is_special(const Script& script, int32_t id);

}  // namespace standin

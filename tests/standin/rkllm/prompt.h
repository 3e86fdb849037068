// From the API's input to the ids that enter the KV cache.
#pragma once
#include <string>
#include <vector>

#include "json.h"
#include "model.h"

namespace standin {

struct Encoded {
  bool ok = true;              // false: refused; a line of the vendor's log says why
  std::vector<int32_t> ids;    // embeddings are negative ids made from their checksum
  std::string text;            // see Question::prompt
  std::string type;
  std::string images;
  JsonLine log;
};

// `continues`: the input is added to a history, so that the template's system part and the BOS are not repeated.
Encoded encode(const Model& model, const Input& input, bool continues);

}  // namespace standin

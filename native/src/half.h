// An element of the KV cache in half precision.
#pragma once

#include <cstdint>

namespace rkk {

// IEEE half, kept as its bits.
struct Half {
  uint16_t bits;
};

}  // namespace rkk

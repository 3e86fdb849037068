// Attention of many tokens.
#pragma once

#include "attention.h"

namespace rkk {

// See attend; for any number of tokens.
template <typename Element>
void attend_many(const Attention<Element>& a, Threads& threads);

}  // namespace rkk

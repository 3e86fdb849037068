// The version this library claims to be. In a file of its own, so that the rest is compiled once for all versions.
#pragma once

namespace standin {

extern const char* const kVersion;

}  // namespace standin

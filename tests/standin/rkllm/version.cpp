#include "version.h"

// The version in the library's bytes, for whoever reads the file without loading it. The log's own format string is there
// too, as in the vendor's library, with no number behind it.
#if defined(STANDIN_PATTERN_SDK)
extern "C" __attribute__((used, visibility("hidden"))) const char standin_version_bytes[] =
    "RKLLM SDK (version: " STANDIN_VERSION " (8f3c21ab7e@2025-11-20T09:15:42))";
#elif defined(STANDIN_PATTERN_RUNTIME)
extern "C" __attribute__((used, visibility("hidden"))) const char standin_version_bytes[] =
    "rkllm-runtime version: " STANDIN_VERSION;
#endif

const char* const standin::kVersion = STANDIN_VERSION;

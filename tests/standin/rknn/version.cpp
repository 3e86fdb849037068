// The version as it stands in the bytes of the vendor's library, and as it tells it.
#ifndef STANDIN_VERSION
#error "the build says which"
#endif

extern const char* const standin_version;
const char* const standin_version = "librknnrt version: " STANDIN_VERSION " (standin@2026-01-01T00:00:00)";

// CRC-32 as zlib has it, so that a test can work out what arrived.
#pragma once
#include <cstddef>
#include <cstdint>

namespace standin {

inline uint32_t crc32(const void* data, size_t size, uint32_t crc = 0) {
  struct Table {
    uint32_t entry[256];
    Table() {
      for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = (c & 1u) != 0 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        entry[i] = c;
      }
    }
  };
  static const Table table;
  crc = ~crc;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) crc = table.entry[(crc ^ bytes[i]) & 0xFFu] ^ (crc >> 8);
  return ~crc;
}

}  // namespace standin

// float16 by its bits: not every compiler here has the type.
#pragma once
#include <cmath>
#include <cstdint>

inline float from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value;
    if (exponent == 31)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = std::ldexp((float)fraction, -24);
    else
        value = std::ldexp((float)(fraction + 1024), exponent - 25);
    return bits >> 15 ? -value : value;
}

// Rounds to the nearest, halves to even; beyond the range to infinity.
inline uint16_t to_half(float value) {
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    float size = std::fabs(value);
    if (std::isnan(value)) return 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    int exponent = 0;
    std::frexp(size, &exponent);          // size in [2^(exponent-1), 2^exponent)
    if (exponent < -13) exponent = -13;   // below the normal numbers steps stay the same
    float steps = std::nearbyint(std::ldexp(size, 11 - exponent));
    // A fraction that was rounded up to 2048 carries into the exponent by itself.
    return sign | (uint16_t)(((exponent + 13) << 10) + (int)steps);
}

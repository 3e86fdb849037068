// The same for wider vectors, which only some processors have; compiled with AVX-512.
#if defined(__x86_64__)
#define RKK_WIDE
#include "decode_loops.h"
#endif

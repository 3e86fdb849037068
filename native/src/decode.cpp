// The inner loops of one token's attention, for the vectors that every processor has that these kernels are made for.
#include "decode_loops.h"

// The switch between products in single precision and those of bfloat16.
#include "tiles.h"

Int tiles_are_on = 0, amx_is_on = 0;

// How the processor multiplies bfloat16: 2 with AMX that the system gives, 1 by vectors, 0 not.
extern "C" Int has_tiles() {
#if defined(HAS_AMX)
  return ask_for_amx() ? 2 : 1;
#elif defined(HAS_TILES)
  return 1;
#else
  return 0;
#endif
}

// Take products of bfloat16 from now on, or not; only where there are such. 2: with AMX.
extern "C" void use_tiles(Int kind) { tiles_are_on = kind > 0, amx_is_on = kind == 2; }

// The switch between products in single precision and those on tiles.
#include "tiles.h"

Int tiles_are_on = 0;

// Whether the processor has tiles and the system gives them.
extern "C" Int has_tiles() {
#ifdef HAS_TILES
  return ask_for_tiles();
#else
  return 0;
#endif
}

// Take tiles from now on, or not; only where there are tiles.
extern "C" void use_tiles(Int on) { tiles_are_on = on; }

// Products; where it is asked for and the processor has AMX or AVX-512's bfloat16, of operands rounded to
// bfloat16, tile by tile, with sums in single precision.
#pragma once
#include "products.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>

#include <cstdlib>

#define HAS_TILES 1
#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_AMX 1
#endif

extern Int amx_is_on;

// A tile of an operand is 16 x 16 pairs of bfloat16, of C 16 x 16 floats: 1,024 bytes each.
static const Int tile_side = 16, tile_depth = 32, tile_floats = 256;
static const Int rows_at_a_time = 512, depth_at_a_time = 1024;  // so that packed operands fit the cache

#ifdef HAS_AMX
// Linux hands out the registers of tiles on request (ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
static bool ask_for_amx() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

struct TileShapes {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

static inline void configure_amx() {
  alignas(64) TileShapes shapes{};
  shapes.palette = 1;
  for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = 16;
  _tile_loadconfig(&shapes);
}
#endif

// Memory of this thread that grows as asked.
struct TileScratch {
  float* data = nullptr;
  Int size = 0;
  float* take(Int count) {
    if (count > size) {
      std::free(data);
      data = (float*)std::aligned_alloc(64, count * sizeof(float));
      size = count;
    }
    return data;
  }
  ~TileScratch() { std::free(data); }
};

static inline __m512 load_some_512(const float* p, Int count) {
  return count >= 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps((1u << (count < 0 ? 0 : count)) - 1, p);
}

// The transpose of 16 x 16 pairs, in place.
static inline void transpose_tile(__m512i* tile) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(tile[i], tile[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(tile[i], tile[i + 1]);
  }
  __m512i r[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m512i a = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88), b = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd), d = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    tile[i] = _mm512_shuffle_i32x4(a, b, 0x88);
    tile[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
    tile[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
    tile[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
}

// One tile from `from`, where element (o, k) lies at from[o * outer + k * depth] and one of the two
// strides is 1; `outers` x `depths` of them are there, zeros beyond. `by_outer`: rows of the tile are
// outer indices (an operand on the left), else pairs of depth (one on the right).
static inline void pack_tile(const float* from, Int outer, Int depth, Int outers, Int depths, bool by_outer,
                             __m512i* tile) {
  const bool rows_are_outer = depth == 1;
  if (rows_are_outer) {
    for (Int o = 0; o < 16; o++, from += outer) {
      const Int count = o < outers ? depths : 0;
      const __m512 low = load_some_512(count ? from : nullptr, count), high = load_some_512(from + 16, count - 16);
      tile[o] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    }
  } else {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (Int k = 0; k < 16; k++, from += 2 * depth) {
      const __m512 even = load_some_512(from, 2 * k < depths ? outers : 0);
      const __m512 odd = load_some_512(from + depth, 2 * k + 1 < depths ? outers : 0);
      tile[k] = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
    }
  }
  if (rows_are_outer != by_outer) transpose_tile(tile);
}

// Tiles of `outers` x `depths` elements: those of 16 outer indices one after the other along depth.
static void pack_tiles(const float* from, Int outer, Int depth, Int outers, Int depths, bool by_outer, float* to) {
  __m512i* tile = (__m512i*)to;
  for (Int o = 0; o < outers; o += 16)
    for (Int k = 0; k < depths; k += tile_depth, tile += 16)
      pack_tile(from + o * outer + k * depth, outer, depth, outers - o < 16 ? outers - o : 16,
                depths - k < tile_depth ? depths - k : tile_depth, by_outer, tile);
}

// What becomes of a finished tile at (m, n) of the product.
static void finish_tile(const float* sums, const Out& out, Int m, Int n, Int rows, Int columns) {
  const Int height = rows - m < 16 ? rows - m : 16, width = columns - n < 16 ? columns - n : 16;
  for (Int i = 0; i < height; i++, sums += 16) {
    const Int offset = (m + i) * out.row + n;
    float* c = out.data + offset;
    if (width == 16) {
      store(c, finish(out.then, load(sums), c, out.extra, offset, n));
    } else {
      for (Int l = 0; l < width; l++) c[l] = finish1(out.then, sums[l], c[l], out.extra, offset + l, n + l);
    }
  }
}

// 2 x 2 tiles of C from `steps` tiles along depth. `a` and `b` are first tiles; those below and to the
// right are `steps` tiles on, or the same ones again where there are none.
#ifdef HAS_AMX
static inline void four_tiles_by_amx(const float* const a[2], const float* const b[2], Int steps, bool add,
                                     float* const sums[4]) {
  if (add) {
    _tile_loadd(0, sums[0], 64);
    _tile_loadd(1, sums[1], 64);
    _tile_loadd(2, sums[2], 64);
    _tile_loadd(3, sums[3], 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (Int k = 0; k < steps; k++) {
    const Int at = k * tile_floats;
    _tile_loadd(4, a[0] + at, 64);
    _tile_loadd(6, b[0] + at, 64);
    _tile_loadd(5, a[1] + at, 64);
    _tile_loadd(7, b[1] + at, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
}
#endif

// The same without AMX, half a tile of A times one or two of B at a time; sums of a tile that is there
// twice are left out.
template <int COLS>
static inline void half_tile(const float* a, const float* const b[2], Int steps, bool add, float* const sums[2]) {
  __m512 sum[8][COLS];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
    for (int j = 0; j < COLS; j++) sum[i][j] = add ? _mm512_load_ps(sums[j] + 16 * i) : _mm512_setzero_ps();
  for (Int k = 0; k < steps * tile_floats; k += tile_floats)
    for (Int pair = 0; pair < 16; pair++) {
      __m512bh right[COLS];
#pragma GCC unroll 2
      for (int j = 0; j < COLS; j++) right[j] = (__m512bh)_mm512_load_ps(b[j] + k + 16 * pair);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) {
        const __m512bh left = (__m512bh)_mm512_set1_ps(a[k + 16 * i + pair]);
#pragma GCC unroll 2
        for (int j = 0; j < COLS; j++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], left, right[j]);
      }
    }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
    for (int j = 0; j < COLS; j++) _mm512_store_ps(sums[j] + 16 * i, sum[i][j]);
}

static inline void four_tiles_by_vectors(const float* const a[2], const float* const b[2], Int steps, bool add,
                                         float* const sums[4]) {
  for (int below = 0; below < (a[0] == a[1] ? 1 : 2); below++)
    for (int half = 0; half < 2; half++) {
      const float* left = a[below] + 128 * half;
      float* const to[2] = {sums[2 * below] + 128 * half, sums[2 * below + 1] + 128 * half};
      if (b[0] == b[1])
        half_tile<1>(left, b, steps, add, to);
      else
        half_tile<2>(left, b, steps, add, to);
    }
}

static inline Int tiles(Int count, Int side) { return (count + side - 1) / side; }

// As `product` of products.h, with operands rounded to bfloat16.
static void product_on_tiles(Int rows, Int columns, Int depth, View a, View b, Out out) {
  static thread_local TileScratch left, right, partial;
  const Int across = tiles(columns, 16), most = depth < depth_at_a_time ? depth : depth_at_a_time;
  float* bs = right.take(across * tiles(most, tile_depth) * tile_floats);
  const Int tall = tiles(rows < rows_at_a_time ? rows : rows_at_a_time, 16), pairs = (across + 1) / 2;
  float* as = left.take(tall * tiles(most, tile_depth) * tile_floats);
  const bool whole = depth <= depth_at_a_time;  // no sum goes on in a second part
  float* sums = partial.take((whole ? 1 : (tall + 1) / 2 * pairs) * 4 * tile_floats);
#ifdef HAS_AMX
  if (amx_is_on) configure_amx();
#endif
  for (Int m0 = 0; m0 < rows; m0 += rows_at_a_time) {
    const Int high = rows - m0 < rows_at_a_time ? rows - m0 : rows_at_a_time, down = tiles(high, 16);
    for (Int k0 = 0; k0 < depth; k0 += depth_at_a_time) {
      const Int deep = depth - k0 < depth_at_a_time ? depth - k0 : depth_at_a_time, steps = tiles(deep, tile_depth);
      pack_tiles(a.data + m0 * a.row + k0 * a.column, a.row, a.column, high, deep, true, as);
      if (m0 == 0 || !whole) pack_tiles(b.data + k0 * b.row, b.column, b.row, columns, deep, false, bs);
      const Int size = steps * tile_floats;
      for (Int n = 0; n < across; n += 2)
        for (Int m = 0; m < down; m += 2) {
          const Int below = m + 1 < down ? m + 1 : m, right_of = n + 1 < across ? n + 1 : n;
          const float* const at_a[2] = {as + m * size, as + below * size};
          const float* const at_b[2] = {bs + n * size, bs + right_of * size};
          float* first = sums + (whole ? 0 : m / 2 * pairs + n / 2) * 4 * tile_floats;
          float* const four[4] = {first, first + tile_floats, first + 2 * tile_floats, first + 3 * tile_floats};
#ifdef HAS_AMX
          if (amx_is_on)
            four_tiles_by_amx(at_a, at_b, steps, k0 > 0, four);
          else
#endif
            four_tiles_by_vectors(at_a, at_b, steps, k0 > 0, four);
          if (k0 + deep < depth) continue;
          for (Int i = 0; i < 4; i++)
            if (m + i / 2 < down && n + i % 2 < across)
              finish_tile(four[i], out, m0 + (m + i / 2) * 16, (n + i % 2) * 16, rows, columns);
        }
    }
  }
#ifdef HAS_AMX
  if (amx_is_on) _tile_release();
#endif
}
#endif

extern Int tiles_are_on;  // set, as amx_is_on, by `use_tiles`
static const Int least = 16;  // a product narrower or shorter than a tile gains nothing by them

// out [rows, columns] = A [rows, depth] B [depth, columns]; `panel` holds depth * 2 vectors. What decides
// are sizes of weights, and of the batch where it is summed over: a row's result does not depend on the
// rows beside it.
static void product(Int rows, Int columns, Int depth, View a, View b, Out out, float* panel) {
#ifdef HAS_TILES
  if (tiles_are_on && depth >= least && columns >= least) {
    product_on_tiles(rows, columns, depth, a, b, out);
    return;
  }
#endif
  product_of_floats(rows, columns, depth, a, b, out, panel);
}

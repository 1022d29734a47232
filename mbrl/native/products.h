// Single-precision products of small matrices with what follows them done in the same pass.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define LANES 16
#define TILE_ROWS 12
#elif defined(__AVX__)
#define LANES 8
#define TILE_ROWS 6
#else
#define LANES 4
#define TILE_ROWS 6
#endif
#define TILE_VECTORS 2

typedef int64_t Int;
typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef float VecU __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t VecI __attribute__((vector_size(LANES * 4)));

static inline Vec load(const float* p) { return *(const VecU*)p; }
static inline void store(float* p, Vec v) { *(VecU*)p = v; }
static inline Vec all(float x) { return x - Vec{}; }

// A matrix view: element (i, j) is at data[i * row + j * column].
struct View {
  const float* data;
  Int row, column;
};

// What becomes of a product P: C = P, C += P, C = P + bias, C = max(P + bias, 0), or C = P where
// `gate` (laid out as C) is above 0 and 0 elsewhere.
enum class Then { Store, Add, Bias, Relu, Gate };

struct Out {
  float* data;
  Int row;
  Then then = Then::Store;
  const float* extra = nullptr;  // the bias, or the gate
};

static inline Vec finish(Then then, Vec v, const float* c, const float* extra, Int offset, Int column) {
  switch (then) {
    case Then::Store: return v;
    case Then::Add: return v + load(c);
    case Then::Bias: return v + load(extra + column);
    case Then::Relu: {
      v += load(extra + column);
      return v < 0.0f ? Vec{} : v;
    }
    case Then::Gate: return load(extra + offset) > 0.0f ? v : Vec{};
  }
  return v;
}

static inline float finish1(Then then, float v, float c, const float* extra, Int offset, Int column) {
  switch (then) {
    case Then::Store: return v;
    case Then::Add: return v + c;
    case Then::Bias: return v + extra[column];
    case Then::Relu: {
      v += extra[column];
      return v < 0.0f ? 0.0f : v;
    }
    case Then::Gate: return extra[offset] > 0.0f ? v : 0.0f;
  }
  return v;
}

// ROWS x (COLS vectors) of the product of A (from its row `m`) and the packed panel.
template <int ROWS, int COLS>
static inline __attribute__((always_inline)) void tile(
    Int depth, View a, Int m, const float* panel, const Out& out, Int n, Int width) {
  Vec sum[ROWS][COLS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int j = 0; j < COLS; j++) sum[i][j] = Vec{};
  const float* first = a.data + m * a.row;
  const Int row = a.row, row3 = 3 * a.row;
  for (Int k = 0; k < depth; k++) {
    Vec b[COLS];
#pragma GCC unroll 4
    for (int j = 0; j < COLS; j++) b[j] = *(const Vec*)(panel + j * LANES);
    panel += COLS * LANES;
    const float* p = first;
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
      if (i > 0 && i % 4 == 0) p += 4 * row;
      const Int step = i % 4 == 0 ? 0 : i % 4 == 1 ? row : i % 4 == 2 ? 2 * row : row3;
      const Vec x = all(p[step]);
#pragma GCC unroll 4
      for (int j = 0; j < COLS; j++) sum[i][j] += x * b[j];
    }
    first += a.column;
  }
  const Then then = out.then;
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++) {
    const Int offset = (m + i) * out.row + n;
    float* c = out.data + offset;
#pragma GCC unroll 4
    for (int j = 0; j < COLS; j++) {
      const Int column = j * LANES;
      if (column + LANES <= width) {
        store(c + column, finish(then, sum[i][j], c + column, out.extra, offset + column, n + column));
      } else {
        for (Int l = column; l < width; l++)
          c[l] = finish1(then, sum[i][j][l - column], c[l], out.extra, offset + l, n + l);
      }
    }
  }
}

template <int COLS>
static void rows_of_panel(Int rows, Int depth, View a, const float* panel, const Out& out, Int n, Int width) {
  Int m = 0;
  for (; m + TILE_ROWS <= rows; m += TILE_ROWS) tile<TILE_ROWS, COLS>(depth, a, m, panel, out, n, width);
  for (; m + 4 <= rows; m += 4) tile<4, COLS>(depth, a, m, panel, out, n, width);
  for (; m < rows; m++) tile<1, COLS>(depth, a, m, panel, out, n, width);
}

// Copy `width` columns of B from column `n` as depth rows of COLS vectors, zeros beyond `width`.
static void pack(Int depth, View b, Int n, Int width, Int padded, float* panel) {
  const float* from = b.data + n * b.column;
  if (b.column == 1 && width == padded) {
    for (Int k = 0; k < depth; k++, from += b.row, panel += padded)
      for (Int l = 0; l < padded; l += LANES) *(Vec*)(panel + l) = load(from + l);
    return;
  }
  if (b.row == 1) {
    for (Int l = 0; l < padded; l++) {
      if (l < width)
        for (Int k = 0; k < depth; k++) panel[k * padded + l] = from[l * b.column + k];
      else
        for (Int k = 0; k < depth; k++) panel[k * padded + l] = 0.0f;
    }
    return;
  }
  for (Int k = 0; k < depth; k++, from += b.row, panel += padded)
    for (Int l = 0; l < padded; l++) panel[l] = l < width ? from[l * b.column] : 0.0f;
}

// out [rows, columns] = A [rows, depth] B [depth, columns]; `panel` holds depth * 2 vectors.
static void product_of_floats(Int rows, Int columns, Int depth, View a, View b, Out out, float* panel) {
  const Int wide = TILE_VECTORS * LANES;
  for (Int n = 0; n < columns; n += wide) {
    const Int width = columns - n < wide ? columns - n : wide;
    if (width > LANES) {
      pack(depth, b, n, width, wide, panel);
      rows_of_panel<2>(rows, depth, a, panel, out, n, width);
    } else {
      pack(depth, b, n, width, LANES, panel);
      rows_of_panel<1>(rows, depth, a, panel, out, n, width);
    }
  }
}

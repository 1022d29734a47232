// Inference of the U-Net over windows (world_models/denoisers.py), a few windows at a time, so that their
// features stay in cache.
#include <algorithm>

#include "networks.h"

// A convolution over time with "same" padding (an even kernel's further place is on the right), a number a
// window and feature added, group normalisation, ReLU.
struct Convolution {
  Int in, out, kernel;
  const float *weight, *bias;   // [kernel * in, out], [out]
  const float* noise;           // [windows, out], or null
  const float *scale, *shift;   // [out]
};

struct UNetPass {
  Int windows, length, features, levels, groups;
  double eps;
  const float* x;  // [windows, length, features]
  float* out;
  const Convolution* parts;  // in the order of use
  const float *out_weight, *out_bias;  // [sizes of the first level, features], [features]
};

// Windows lie one after the other with a row of zeros before, between and after them: what a kernel sees
// beyond a window.
struct Rows {
  Int windows, length;
  Int all() const { return windows * (length + 1) + 1; }
  Int first(Int window) const { return window * (length + 1) + 1; }
};

static const Int windows_at_once = 16;

static void clear_between(float* data, Int row, Rows rows) {
  for (Int w = 0; w <= rows.windows; w++) std::fill_n(data + w * (rows.length + 1) * row, row, 0.0f);
}

// The sum over rows of (x + shift)^2, or without a shift of x, by column.
static void column_sums(const float* __restrict x, Int rows, Int n, const float* __restrict shift,
                        float* __restrict sum) {
  Int c = 0;
  for (; c + LANES <= n; c += LANES) {
    Vec total{};
    if (shift) {
      const Vec by = load(shift + c);
      for (Int l = 0; l < rows; l++) {
        const Vec away = load(x + l * n + c) + by;
        total += away * away;
      }
    } else {
      for (Int l = 0; l < rows; l++) total += load(x + l * n + c);
    }
    store(sum + c, total);
  }
  for (; c < n; c++) {
    sum[c] = 0.0f;
    for (Int l = 0; l < rows; l++) {
      const float value = x[l * n + c] + (shift ? shift[c] : 0.0f);
      sum[c] += shift ? value * value : value;
    }
  }
}

// to = max(x factor + shift, 0) by column.
static void scaled_relu(const float* __restrict x, Int rows, Int n, const float* __restrict factor,
                        const float* __restrict shift, float* __restrict to, Int to_row) {
  Int c = 0;
  for (; c + LANES <= n; c += LANES) {
    const Vec by = load(factor + c), plus = load(shift + c);
    for (Int l = 0; l < rows; l++) {
      const Vec h = load(x + l * n + c) * by + plus;
      store(to + l * to_row + c, h < 0.0f ? Vec{} : h);
    }
  }
  for (; c < n; c++)
    for (Int l = 0; l < rows; l++) {
      const float h = x[l * n + c] * factor[c] + shift[c];
      to[l * to_row + c] = h < 0.0f ? 0.0f : h;
    }
}

// relu(scale (h - mean) / sqrt(variance + eps) + shift) of h = x + noise, means and variances over the
// features of a group and all rows.
static void normalised(const float* x, Int length, const Convolution& part, const float* noise, Int groups,
                       float eps, float* to, Int to_row, float* sum, float* factor) {
  const Int n = part.out, size = n / groups;
  const float share = 1.0f / float(length * size);
  column_sums(x, length, n, nullptr, sum);
  for (Int g = 0; g < groups; g++) {
    float mean = 0.0f;
    for (Int c = g * size; c < (g + 1) * size; c++) mean += sum[c] + (noise ? length * noise[c] : 0.0f);
    mean *= share;
    for (Int c = g * size; c < (g + 1) * size; c++) sum[c] = (noise ? noise[c] : 0.0f) - mean;
  }
  column_sums(x, length, n, sum, factor);
  for (Int g = 0; g < groups; g++) {
    float variance = 0.0f;
    for (Int c = g * size; c < (g + 1) * size; c++) variance += factor[c];
    const float inverse = 1.0f / std::sqrt(variance * share + eps);
    for (Int c = g * size; c < (g + 1) * size; c++) {
      factor[c] = inverse * part.scale[c];
      sum[c] = sum[c] * factor[c] + part.shift[c];
    }
  }
  scaled_relu(x, length, n, factor, sum, to, to_row);
}

// What a call shares: the pass, the first window of those at hand, and scratch memory.
struct Work {
  const UNetPass& call;
  Int begin;
  float *raw, *sum, *factor, *panel;
};

// From `x` with rows of `part.in` features to `to`, whose rows are `to_row` apart.
static void convolve(const Work& work, const Convolution& part, Rows rows, const float* x, float* to, Int to_row) {
  const Int depth = part.kernel * part.in, left = (part.kernel - 1) / 2;
  product(rows.all() - 2, part.out, depth, View{x + (1 - left) * part.in, part.in, 1}, View{part.weight, part.out, 1},
          Out{work.raw, part.out, Then::Bias, part.bias}, work.panel);
  for (Int w = 0; w < rows.windows; w++) {
    const float* noise = part.noise ? part.noise + (work.begin + w) * part.out : nullptr;
    normalised(work.raw + w * (rows.length + 1) * part.out, rows.length, part, noise, work.call.groups,
               float(work.call.eps), to + rows.first(w) * to_row, to_row, work.sum, work.factor);
  }
}

// The larger of every two rows, of `size` features.
static void pooled(const float* x, Int row, Rows rows, Int size, Rows fewer, float* to) {
  for (Int w = 0; w < rows.windows; w++)
    for (Int l = 0; l < fewer.length; l++) {
      const float *a = x + (rows.first(w) + 2 * l) * row, *b = a + row;
      float* c = to + (fewer.first(w) + l) * size;
      for (Int i = 0; i < size; i++) c[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
    }
}

// The row at the floor of each place.
static void stretched(const float* x, Rows rows, Int size, Rows more, float* to) {
  const float step = float(rows.length) / float(more.length);
  for (Int w = 0; w < rows.windows; w++)
    for (Int l = 0; l < more.length; l++) {
      const Int from = std::min(Int(l * step), rows.length - 1);
      std::memcpy(to + (more.first(w) + l) * size, x + (rows.first(w) + from) * size, size * sizeof(float));
    }
}

static float* padded(Rows rows, Int size) {
  float* data = arena.take(rows.all() * size);
  clear_between(data, size, rows);
  return data;
}

static void some_windows(Work work, Int count) {
  const UNetPass& call = work.call;
  const Int last = call.levels - 1;
  const Convolution* part = call.parts;
  Rows rows{count, call.length};
  std::vector<Rows> all_rows;
  std::vector<float*> beside;  // what comes up, and what is kept of the way down, next to each other
  float* h = padded(rows, call.features);
  for (Int w = 0; w < count; w++)
    std::memcpy(h + rows.first(w) * call.features, call.x + (work.begin + w) * call.length * call.features,
                call.length * call.features * sizeof(float));
  for (Int i = 0; i <= last; i++) {
    const Int size = part->out;
    float* first = padded(rows, size);
    convolve(work, *part++, rows, h, first, size);
    if (i == last) {
      h = padded(rows, size);
      convolve(work, *part++, rows, first, h, size);
      break;
    }
    all_rows.push_back(rows);
    beside.push_back(padded(rows, 2 * size));
    convolve(work, *part++, rows, first, beside.back() + size, 2 * size);
    const Rows fewer{count, rows.length / 2};
    h = padded(fewer, size);
    pooled(beside.back() + size, 2 * size, rows, size, fewer, h);
    rows = fewer;
  }
  for (Int i = last - 1; i >= 0; i--) {
    const Int size = part->out;
    float* wide = padded(all_rows[i], part->in);
    stretched(h, rows, part->in, all_rows[i], wide);
    rows = all_rows[i];
    convolve(work, *part++, rows, wide, beside[i], 2 * size);
    float* first = padded(rows, size);
    convolve(work, *part++, rows, beside[i], first, size);
    h = padded(rows, size);
    convolve(work, *part++, rows, first, h, size);
  }
  const Int size = call.parts[0].out, n = call.features;
  product(rows.all() - 2, n, size, View{h + size, size, 1}, View{call.out_weight, n, 1},
          Out{work.raw, n, Then::Bias, call.out_bias}, work.panel);
  for (Int w = 0; w < count; w++)
    std::memcpy(call.out + (work.begin + w) * call.length * n, work.raw + w * (call.length + 1) * n,
                call.length * n * sizeof(float));
}

// Windows `begin` to `end` of a pass.
extern "C" void unet_windows(const UNetPass* call, Int begin, Int end) {
  Int widest = call->features, deepest = 0;
  for (Int i = 0; i < 2 * call->levels + 3 * (call->levels - 1); i++) {
    widest = std::max(widest, call->parts[i].out);
    deepest = std::max(deepest, call->parts[i].kernel * call->parts[i].in);
  }
  deepest = std::max(deepest, call->parts[0].out);
  for (; begin < end; begin += windows_at_once) {
    arena.clear();
    const Int count = std::min(windows_at_once, end - begin);
    float* raw = arena.take(Rows{count, call->length}.all() * widest);
    float* panel = arena.take(deepest * TILE_VECTORS * LANES);
    some_windows(Work{*call, begin, raw, arena.take(widest), arena.take(widest), panel}, count);
  }
}

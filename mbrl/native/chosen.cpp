// Draws from the Gaussian members of an ensemble, each row from the member chosen for it, which alone
// is evaluated.
#include "networks.h"

struct ChosenDraws {
  const Network* net;  // out of its last layer: mean, then raw log-variance, of every target
  Int rows, activation, size;
  const float* x;           // [rows, in]
  const Int* member;        // [rows]
  const float *low, *high;  // bounds of log-variances [size]
  const float* noise;       // [rows, size]
  float* out;               // [rows, size]
};

static const Int block_rows = 256;  // at a time, whose activations fit the cache

// Deviations [rows, size] of outputs [rows, 2 size]: sqrt(least + most sigmoid(s - high)). `to` has room
// for a vector more.
static void deviations(float* to, const float* out, const float* least, const float* most, const float* high,
                       Int rows, Int size) {
  for (Int r = 0; r < rows; r++)
    for (Int i = 0; i < size; i++) to[r * size + i] = high[i] - out[r * 2 * size + size + i];
  for (Int i = 0; i < rows * size; i += LANES) store(to + i, 1.0f / (1.0f + exp_of(load(to + i))));
  for (Int r = 0; r < rows; r++)
    for (Int i = 0; i < size; i++) to[r * size + i] = std::sqrt(least[i] + most[i] * to[r * size + i]);
}

// Returns the first row whose member does not exist, or -1: then all is written.
extern "C" Int chosen_draws(const ChosenDraws* call) {
  const ChosenDraws& c = *call;
  const Network& net = *c.net;
  const Int in = net.in(0), size = c.size, most_rows = c.rows < block_rows ? c.rows : block_rows;
  std::vector<Int> begin(net.members + 1, 0), order(c.rows);
  for (Int r = 0; r < c.rows; r++) {
    if (c.member[r] < 0 || c.member[r] >= net.members) return r;
    begin[c.member[r] + 1]++;
  }
  for (Int e = 0; e < net.members; e++) begin[e + 1] += begin[e];
  std::vector<Int> next(begin);
  for (Int r = 0; r < c.rows; r++) order[next[c.member[r]]++] = r;

  arena.clear();
  float* panel = arena.take(net.widest() * TILE_VECTORS * LANES);
  float *x = arena.take(most_rows * in), *out = arena.take(most_rows * 2 * size);
  float *spread = arena.take(most_rows * size + LANES), *least = arena.take(size), *most = arena.take(size);
  for (Int i = 0; i < size; i++) least[i] = std::exp(c.low[i]), most[i] = std::exp(c.high[i]);
  Pass pass = new_pass(net, x, most_rows, in);
  pass.activation = (Activation)c.activation;
  for (Int e = 0; e < net.members; e++) {
    for (Int at = begin[e]; at < begin[e + 1]; at += pass.rows) {
      const Int* index = order.data() + at;
      pass.rows = begin[e + 1] - at < block_rows ? begin[e + 1] - at : block_rows;
      for (Int r = 0; r < pass.rows; r++) std::memcpy(x + r * in, c.x + index[r] * in, in * sizeof(float));
      forward(net, e, pass, out, panel);
      deviations(spread, out, least, most, c.high, pass.rows, size);
      for (Int r = 0; r < pass.rows; r++) {
        const float *mean = out + r * 2 * size, *deviation = spread + r * size, *noise = c.noise + index[r] * size;
        float* to = c.out + index[r] * size;
        for (Int i = 0; i < size; i++) to[i] = mean[i] + deviation[i] * noise[i];
      }
    }
  }
  return -1;
}

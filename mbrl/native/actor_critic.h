// What the actor-critic learners' steps share: inputs from a batch's columns, and values of actions
// with their gradients.
#pragma once
#include "networks.h"

// Standardisation of observations; null pointers stand for the identity.
struct Normaliser {
  const float *mean, *std;
};

// Rows of a batch: the first value of each row and how far apart rows are.
struct Column {
  const float* data;
  Int row;
};

static void write_inputs(float* x, Int width, Column obs, Int rows, Int size, Normaliser n) {
  for (Int m = 0; m < rows; m++) {
    const float* from = obs.data + m * obs.row;
    float* to = x + m * width;
    if (n.mean)
      for (Int i = 0; i < size; i++) to[i] = (from[i] - n.mean[i]) / n.std[i];
    else
      std::memcpy(to, from, size * sizeof(float));
  }
}

static void write_actions(float* x, Int width, Int offset, Column action, Int rows, Int size) {
  for (Int m = 0; m < rows; m++)
    std::memcpy(x + m * width + offset, action.data + m * action.row, size * sizeof(float));
}

static const float minimum_log_std = -5.0f, maximum_log_std = 2.0f;  // of Gaussian policies

static inline float clipped(float x, float bound) { return x < -bound ? -bound : x > bound ? bound : x; }

// lowest = min(lowest, q); what is not a number stays.
static void lower(float* lowest, const float* q, Int rows) {
  for (Int m = 0; m < rows; m++) lowest[m] = lowest[m] < q[m] || lowest[m] != lowest[m] ? lowest[m] : q[m];
}

// dQ/da [rows, actions] of the rows in `chosen` (all of them where it is null), added to `out` at
// their places, times `scale`.
static void action_gradient(const Network& net, Int e, const Pass& pass, const Int* chosen, Int count,
                            float scale, Int actions, float* out, float* const scratch[3], float* panel) {
  const Int last = net.depth - 1;
  const float* d = nullptr;
  std::vector<float> inverses(chosen && net.norm ? count : 0);
  for (Int l = last; l > 0; l--) {
    const Int n = net.in(l);
    const float* h = pass.hidden[l - 1];
    if (chosen) {
      for (Int m = 0; m < count; m++)
        std::memcpy(scratch[2] + m * n, h + chosen[m] * n, n * sizeof(float));
      h = scratch[2];
    }
    float* next = scratch[l % 2];
    if (l == last)
      head_chain(next, nullptr, net.weight(l, e), h, count, n);
    else
      product(count, n, net.out(l), View{d, net.out(l), 1}, net.backward_view(l, e),
              Out{next, n, Then::Gate, h}, panel);
    if (net.norm) {
      const float *normal = pass.normal[l - 1], *inverse = pass.inverse[l - 1];
      if (chosen) {
        for (Int m = 0; m < count; m++) {
          std::memcpy(scratch[2] + m * n, normal + chosen[m] * n, n * sizeof(float));
          inverses[m] = inverse[chosen[m]];
        }
        normal = scratch[2];
        inverse = inverses.data();
      }
      layer_norm_gradient(next, normal, inverse, net.scale(l - 1, e), nullptr, nullptr, count, n);
    }
    d = next;
  }
  const Int width = net.out(0), first = net.in(0) - actions;
  View w = net.backward_view(0, e);
  w.data += first * w.column;
  float* g = scratch[2];
  product(count, actions, width, View{d, width, 1}, w, Out{g, actions}, panel);
  for (Int m = 0; m < count; m++) {
    float* to = out + (chosen ? chosen[m] : m) * actions;
    for (Int a = 0; a < actions; a++) to[a] += scale * g[m * actions + a];
  }
}

static float* new_panel(const Network& a, const Network& b, Int rows) {
  Int depth = a.widest() > b.widest() ? a.widest() : b.widest();
  depth = depth > rows ? depth : rows;
  return arena.take(depth * TILE_VECTORS * LANES);
}

// The minimum q [rows] over the first `members` critics at x [rows, width], or their mean, and its
// gradient [rows, actions] in the last `actions` inputs: that of a minimum takes the rows of each
// member where it is the lowest.
static void value_gradients(const Network& critic, const float* x, Int rows, Int width, Int members, bool mean,
                            Int actions, float* q, float* gradient, float* panel) {
  const Int widest = critic.widest();
  float* const scratch[3] = {arena.take(rows * widest), arena.take(rows * widest), arena.take(rows * widest)};
  float* each = arena.take(members * rows);
  std::vector<Pass> passes;
  for (Int e = 0; e < members; e++) {
    passes.push_back(new_pass(critic, x, rows, width));
    forward(critic, e, passes[e], each + e * rows, panel);
  }
  std::memset(gradient, 0, rows * actions * sizeof(float));
  if (mean || members == 1) {
    std::memset(q, 0, rows * sizeof(float));
    for (Int e = 0; e < members; e++) {
      for (Int m = 0; m < rows; m++) q[m] += each[e * rows + m] / members;
      action_gradient(critic, e, passes[e], nullptr, rows, 1.0f / members, actions, gradient, scratch, panel);
    }
    return;
  }
  std::vector<Int> lowest(rows, 0), chosen(rows);
  for (Int m = 0; m < rows; m++) {
    for (Int e = 1; e < members; e++) {
      const float value = each[e * rows + m];
      if (value < each[lowest[m] * rows + m] || value != value) lowest[m] = e;  // NaN stays, as in PyTorch
    }
    q[m] = each[lowest[m] * rows + m];
  }
  for (Int e = 0; e < members; e++) {
    Int count = 0;
    for (Int m = 0; m < rows; m++)
      if (lowest[m] == e) chosen[count++] = m;
    if (count) action_gradient(critic, e, passes[e], chosen.data(), count, 1.0f, actions, gradient, scratch, panel);
  }
}

// The steps of implicit Q-learning's value and policy. Their definition is `algorithms/iql.py`.
#include "actor_critic.h"

struct ImplicitStep {
  const Network *value, *policy, *critic;  // the critic: the target average
  Normaliser inputs;
  Column obs, action, reward, discount, next_obs;
  Int rows, obs_dim, action_dim;
  float expectile, temperature, max_weight;
  float *log_std, *log_std_moment, *log_std_square, *log_std_step;  // [action_dim], of the policy
  Adam value_adam, policy_adam;
  float* target;   // [rows]: r + discount V(s'), with the value before its step
  float* metrics;  // [3]: the value's loss, the policy's, the mean weight
};

// A step of the value on mean |expectile - 1(u < 0)| u^2, u = min_n Q_n(s, a) - V(s), and of the policy on
// -mean min(exp(temperature u), max_weight) log pi(a|s), a Gaussian around tanh of a network.
extern "C" void implicit_step(const ImplicitStep* step) {
  arena.clear();
  const Network &value = *step->value, &policy = *step->policy, &critic = *step->critic;
  const Int rows = step->rows, S = step->obs_dim, A = step->action_dim, width = S + A;
  float* panel = new_panel(value, critic, rows);
  float* other = new_panel(policy, critic, rows);
  float *x = arena.take(rows * width), *next = arena.take(rows * S);
  write_inputs(x, width, step->obs, rows, S, step->inputs);
  write_actions(x, width, S, step->action, rows, A);
  write_inputs(next, S, step->next_obs, rows, S, step->inputs);

  Pass ahead = new_pass(value, next, rows, S);
  float *v = arena.take(rows), *q = arena.take(rows), *lowest = arena.take(rows);
  forward(value, 0, ahead, v, panel);
  for (Int m = 0; m < rows; m++)
    step->target[m] = step->reward.data[m * step->reward.row] + step->discount.data[m * step->discount.row] * v[m];
  Pass values = new_pass(critic, x, rows, width);
  for (Int n = 0; n < critic.members; n++) {
    forward(critic, n, values, n ? q : lowest, panel);
    if (n) lower(lowest, q, rows);
  }
  Pass here = new_pass(value, x, rows, width);
  forward(value, 0, here, v, panel);
  float *g = arena.take(rows), *weight = arena.take(rows);
  double value_loss = 0.0, weights = 0.0;
  for (Int m = 0; m < rows; m++) {
    const float u = lowest[m] - v[m], share = u < 0.0f ? 1.0f - step->expectile : step->expectile;
    value_loss += share * u * u;
    g[m] = -2.0f * share * u / rows;
    const float e = std::exp(step->temperature * u);
    weight[m] = e > step->max_weight ? step->max_weight : e;
    weights += weight[m];
  }
  {
    Gradients gradients(value);
    float* const two[2] = {arena.take(rows * value.widest()), arena.take(rows * value.widest())};
    backward(value, 0, here, g, &gradients, two, panel);
    descend(value, gradients, step->value_adam);
  }

  Pass pass = new_pass(policy, x, rows, width);
  float *mean = arena.take(rows * A), *d = arena.take(rows * A);
  forward(policy, 0, pass, mean, other);
  activate(Tanh, mean, mean, rows * A);
  std::vector<float> log_std(A), std(A), slope(A, 0.0f);
  for (Int a = 0; a < A; a++) {
    const float raw = step->log_std[a];
    log_std[a] = raw < minimum_log_std ? minimum_log_std : raw > maximum_log_std ? maximum_log_std : raw;
    std[a] = std::exp(log_std[a]);
  }
  double loss = 0.0;
  for (Int m = 0; m < rows; m++)
    for (Int a = 0; a < A; a++) {
      const float t = mean[m * A + a];
      const float n = (step->action.data[m * step->action.row + a] - t) / std[a], w = weight[m] / rows;
      loss += w * (0.5f * n * n + log_std[a] + 0.91893853320467274f);
      d[m * A + a] = -w * n / std[a] * (1.0f - t * t);
      slope[a] += w * (1.0f - n * n);
    }
  Gradients gradients(policy);
  float* const two[2] = {arena.take(rows * policy.widest()), arena.take(rows * policy.widest())};
  backward(policy, 0, pass, d, &gradients, two, other);
  descend(policy, gradients, step->policy_adam);
  for (Int a = 0; a < A; a++)
    if (step->log_std[a] < minimum_log_std || step->log_std[a] > maximum_log_std) slope[a] = 0.0f;
  adam_step(step->log_std, slope.data(), step->log_std_moment, step->log_std_square, step->log_std_step, A,
            step->policy_adam);
  step->metrics[0] = (float)(value_loss / rows);
  step->metrics[1] = (float)loss;
  step->metrics[2] = (float)(weights / rows);
}

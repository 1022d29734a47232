// The steps of TD3's learner with a deterministic policy, tanh of a network. The definition of all of
// them is `algorithms/learners/td3.py`.
#include "actor_critic.h"

// The policy's action at a step's observations, which begin the rows of x [rows, obs_dim + action_dim].
struct Action {
  Pass pass;
  float *x, *action;
};

template <class Step>
static Action new_action(const Network& policy, const Step& step, float* panel) {
  const Int rows = step.rows, S = step.obs_dim, A = step.action_dim, width = S + A;
  float *x = arena.take(rows * width), *action = arena.take(rows * A);
  write_inputs(x, width, step.obs, rows, S, step.inputs);
  Pass pass = new_pass(policy, x, rows, width);
  forward(policy, 0, pass, action, panel);
  activate(Tanh, action, action, rows * A);
  return Action{pass, x, action};
}

struct DeterministicTarget {
  const Network *policy, *critic;  // the target averages
  Normaliser inputs;
  Column obs, reward, discount, next_action, has_next;  // obs: the next ones; the last two may be null
  const float* noise;                                   // [rows, action_dim]
  Int rows, obs_dim, action_dim;
  float deviation, bound, penalty;  // of the noise; of the squared distance to the logged next action
  float* target;                    // [rows]
};

// y = r + discount (min_n Q_n(s', a') - penalty |a' - logged|^2), a' = policy and clipped noise.
extern "C" void deterministic_target(const DeterministicTarget* step) {
  arena.clear();
  const Network &policy = *step->policy, &critic = *step->critic;
  const Int rows = step->rows, S = step->obs_dim, A = step->action_dim, width = S + A;
  float* panel = new_panel(policy, critic, rows);
  const Action acted = new_action(policy, *step, panel);
  float *x = acted.x, *action = acted.action;
  for (Int i = 0; i < rows * A; i++) {
    const float n = clipped(step->noise[i] * step->deviation, step->bound);
    action[i] = clipped(action[i] + n, 1.0f);
  }
  write_actions(x, width, S, Column{action, A}, rows, A);
  Pass values = new_pass(critic, x, rows, width);
  float *q = arena.take(rows), *lowest = arena.take(rows);
  for (Int n = 0; n < critic.members; n++) {
    forward(critic, n, values, n ? q : lowest, panel);
    if (n) lower(lowest, q, rows);
  }
  for (Int m = 0; m < rows; m++) {
    float value = lowest[m];
    if (step->has_next.data && step->has_next.data[m * step->has_next.row] > 0.0f) {
      const float* logged = step->next_action.data + m * step->next_action.row;
      float distance = 0.0f;
      for (Int a = 0; a < A; a++) distance += (action[m * A + a] - logged[a]) * (action[m * A + a] - logged[a]);
      value -= step->penalty * distance;
    }
    step->target[m] = step->reward.data[m * step->reward.row] + step->discount.data[m * step->discount.row] * value;
  }
}

struct DeterministicPolicyStep {
  const Network *policy, *critic;
  Normaliser inputs;
  Column obs, logged;
  Int rows, obs_dim, action_dim;
  Int of_minimum, normalised;  // the critics' minimum and not the first; divide by mean |Q|
  float value_weight, clone_weight, distance_scale;
  Adam adam;
  float* metrics;  // [2]: loss, mean over rows of the squared distance, scaled
};

// A step of the policy on mean (clone_weight |a - logged|^2 - value_weight Q(s, a) / mean |Q|); without
// the values, for which `critic` may be any network, it is behaviour cloning.
extern "C" void deterministic_policy_step(const DeterministicPolicyStep* step) {
  arena.clear();
  const Network &policy = *step->policy, &critic = *step->critic;
  const Int rows = step->rows, S = step->obs_dim, A = step->action_dim, width = S + A;
  float* panel = new_panel(policy, critic, rows);
  const Action acted = new_action(policy, *step, panel);
  float *x = acted.x, *action = acted.action;
  float *q = arena.take(rows), *dq_da = arena.take(rows * A);
  write_actions(x, width, S, Column{action, A}, rows, A);
  if (step->value_weight != 0.0f) {
    value_gradients(critic, x, rows, width, step->of_minimum ? critic.members : 1, false, A, q, dq_da, panel);
  } else {
    std::memset(q, 0, rows * sizeof(float));
    std::memset(dq_da, 0, rows * A * sizeof(float));
  }
  double value = 0.0, size = 0.0, distance = 0.0;
  for (Int m = 0; m < rows; m++) {
    value += q[m];
    size += std::fabs(q[m]);
  }
  const double mean_size = size / rows > 1e-8 || size != size ? size / rows : 1e-8;
  const float weight = step->normalised ? (float)(step->value_weight / mean_size) : step->value_weight;
  float* g = arena.take(rows * A);
  for (Int m = 0; m < rows; m++)
    for (Int a = 0; a < A; a++) {
      const Int i = m * A + a;
      const float t = action[i], off = t - step->logged.data[m * step->logged.row + a];
      distance += off * off;
      g[i] = (2.0f * step->clone_weight * off - weight * dq_da[i]) * (1.0f - t * t) / rows;
    }
  Gradients gradients(policy);
  const Int wide = policy.widest();
  float* const two[2] = {arena.take(rows * wide), arena.take(rows * wide)};
  backward(policy, 0, acted.pass, g, &gradients, two, panel);
  descend(policy, gradients, step->adam);
  step->metrics[0] = (float)(step->clone_weight * distance / rows - weight * value / rows);
  step->metrics[1] = (float)(step->distance_scale * distance / rows);
}

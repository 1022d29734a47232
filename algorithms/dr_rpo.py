"""DR-RPO: policy-regularised online learning in distributionally robust linear Markov decision
processes (arXiv 2510.14246), for finite states and actions, in float64. No code of the authors is
known: the formulas are reconstructed.

Differences: by default the policy is the regularised optimum of the present estimate; with `mirror`
it takes a step towards it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import logsumexp

from mbrl.config import Count, NonNegative, Positive, Rate, Settings, Several
from mbrl.errors import ConfigError, DataError

Divergence = Literal["total_variation", "kl", "chi_square"]
Array = np.ndarray


@dataclass(frozen=True)
class DRRPOConfig(Settings):
    """Settings of DR-RPO."""

    divergence: Divergence = "total_variation"  # of the balls around the factors
    radius: NonNegative = 0.1  # rho; of total variation, half of the l1 distance, at most 1
    temperature: Positive = 0.1  # eta of the regularisation towards the reference policy
    mirror: Rate = 1.0  # c of a step from the previous policy; 1: to the present optimum
    bonus: NonNegative = 0.1  # beta of the optimism
    ridge: Positive = 1.0  # of the regressions
    grid: Several = 201  # values of the dual variable that are tried
    horizon: Count = 3  # H, steps of an episode

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence == "total_variation" and self.radius > 1:
            raise ConfigError(
                f"radius is {self.radius} with total_variation; it must lie in [0, 1], the largest "
                "distance of two distributions"
            )


def dual_grid(top: float, count: int, divergence: Divergence) -> Array:
    """Values [L] of the dual variable lambda: of total variation and chi-square evenly from 0 to
    the largest value `top`; of KL geometric from `top` / 1000 to 1000 `top`."""
    if divergence == "kl":
        return np.asarray(np.geomspace(1e-3 * max(top, 1e-9), 1e3 * max(top, 1e-9), count))
    return np.linspace(0.0, top, count)


def transformed(values: Array, grid: Array, divergence: Divergence) -> tuple[Array, ...]:
    """What is averaged over next states, each [L, S], for `values` [S] and `grid` [L]:
    1 - exp(-(V - min V) / lambda) of KL; min(V, lambda) of the others, with its square for
    chi-square."""
    if divergence == "kl":
        return (-np.expm1(-(values - values.min())[None] / grid[:, None]),)
    cut = np.minimum(values[None], grid[:, None])
    return (cut, cut**2) if divergence == "chi_square" else (cut,)


def dual_values(
    means: tuple[Array, ...], grid: Array, lowest: float, radius: float, divergence: Divergence
) -> Array:
    """The worst expectation [...] within the ball: the maximum over lambda of
    E min(V, lambda) - rho (lambda - min V) (total variation), -lambda log E exp(-V / lambda) -
    lambda rho (KL) or E min(V, lambda) - sqrt(rho Var min(V, lambda)) (chi-square), from the
    `means` [L, ...] of `transformed` and min V `lowest`. A lambda below min V counts as min V."""
    shape = (len(grid),) + (1,) * (means[0].ndim - 1)
    levels = grid.reshape(shape)
    if divergence == "kl":
        dual = lowest - levels * (np.log(np.clip(1 - means[0], 1e-300, None)) + radius)
    elif divergence == "chi_square":
        variance = np.clip(means[1] - means[0] ** 2, 0.0, None)
        dual = means[0] - np.sqrt(radius * variance)
    else:
        dual = means[0] - radius * np.clip(levels - lowest, 0.0, None)
    return np.asarray(dual.max(0))


def worst_expectation(
    values: Array, probabilities: Array, radius: float, divergence: Divergence, count: int = 2001
) -> float:
    """The least expectation of `values` [S], all at least 0, under distributions in the ball of
    `radius` around `probabilities` [S]; exact for total variation, whose dual is piecewise linear
    with its corners at the values, on a grid of `count` for the others."""
    grid = dual_grid(float(values.max()), count, divergence)
    if divergence == "total_variation":
        grid = np.unique(np.concatenate([values, grid]))
    means = tuple(t @ probabilities for t in transformed(values, grid, divergence))
    lowest = float(values.min())
    return max(lowest, float(dual_values(means, grid, lowest, radius, divergence)))


def regularised(q: Array, reference: Array, temperature: float) -> tuple[Array, Array]:
    """pi = reference exp(Q / eta) / Z [S, A] and V = eta log Z [S], which is the maximum over pi of
    E_pi Q - eta KL(pi || reference), from `q` and `reference` [S, A]."""
    with np.errstate(divide="ignore"):  # actions that the reference never takes
        logits = np.log(reference) + q / temperature
    total = logsumexp(logits, axis=1)
    return np.exp(logits - total[:, None]), temperature * total


def mirror_step(
    q: Array, log_previous: Array, reference: Array, temperature: float, share: float
) -> tuple[Array, Array]:
    """log pi and V = E_pi Q - eta KL(pi || reference) [S] of
    pi = previous^(1 - c) (reference exp(Q / eta))^c / Z [S, A], which is the maximum over pi of
    E_pi Q - eta KL(pi || reference) - eta (1 - c) / c KL(pi || previous), with c = `share` below 1.

    Mirror Descent Policy Optimization (arXiv 2005.09814), with its step in closed form.
    """
    with np.errstate(divide="ignore"):  # actions that the reference never takes
        log_reference = np.log(reference)
    logits = (1 - share) * log_previous + share * (log_reference + q / temperature)
    log_policy = logits - logsumexp(logits, axis=1, keepdims=True)
    policy = np.exp(log_policy)
    apart = np.subtract(log_policy, log_reference, where=policy > 0, out=np.zeros_like(policy))
    return log_policy, (policy * (q - temperature * apart)).sum(1)


class DRRPO:
    """Optimistic robust value iteration from counts of transitions.

    Formula:

        factors      P_h(.|s, a) = sum_i phi_i(s, a) mu_(h, i), each mu_(h, i) in a ball of its own
        regression   z(lambda) = Lambda^-1 sum phi min(V_(h+1)(s'), lambda), Lambda = sum phi phi' +
                     ridge; nu_i = max over lambda of z_i(lambda) - rho lambda (total variation)
        values       Q_h = clip(r_h + phi nu + beta sum_i phi_i sqrt((Lambda^-1)_ii), 0, H - h + 1)
        policy       pi_h = reference exp(Q_h / eta) / Z, V_h = eta log Z
                     or, with c = `mirror` below 1, one step from the policy of the plan before:
                     pi_h <- pi_h^(1 - c) (reference exp(Q_h / eta))^c / Z,
                     V_h = max(E_pi Q_h - eta KL(pi_h || reference), 0)

    When not to use it: where features are learned or states are many: it is for small problems
    whose features are known and lie in the simplex. A radius of 0 is plain optimistic learning.

    `features` [S, A, d] lie in the simplex; `reward` [S, A] in [0, 1]; `reference` [S, A] is a
    policy (None: uniform). One state is to have value 0, as a fail state does; the least estimated
    value is taken for it otherwise. Raises `DataError` for arrays that are not like that.

    The mirror step is the usual one of mirror descent, not known to be the paper's: its abstract
    says that a softmax policy is optimised which is regularised towards a reference, and no more.
    """

    def __init__(
        self,
        features: Array,
        reward: Array,
        config: DRRPOConfig | None = None,
        reference: Array | None = None,
    ) -> None:
        self.config = config or DRRPOConfig()
        states, actions, _ = features.shape
        reference = np.full((states, actions), 1 / actions) if reference is None else reference
        require_simplex("features", features)
        require_simplex("reference", reference)
        for name, array in (("reward", reward), ("reference", reference)):
            if array.shape != (states, actions):
                raise DataError(
                    f"{name} has shape {array.shape}, features are of {states} states and "
                    f"{actions} actions; give [{states}, {actions}]"
                )
        if (reward < 0).any() or (reward > 1).any():
            raise DataError(
                f"reward lies in [{reward.min():g}, {reward.max():g}], it must lie in [0, 1]; "
                "scale it"
            )
        self.features, self.reward, self.reference = features, reward, reference
        self.counts = np.zeros((self.config.horizon, states, actions, states))
        with np.errstate(divide="ignore"):
            first = np.log(reference)
        self.log_policy = np.repeat(first[None], self.config.horizon, 0)  # of the plan before

    def observe(self, step: int, state: int, action: int, next_state: int) -> None:
        """Add a transition of step `step` (0 is the first). Raises `DataError` for one beyond the
        horizon."""
        if not 0 <= step < self.config.horizon:
            raise DataError(f"step is {step}, it must lie in 0..{self.config.horizon - 1}")
        self.counts[step, state, action, next_state] += 1

    def plan(self) -> tuple[Array, Array]:
        """The policy [H, S, A] and its optimistic robust values [H + 1, S], the last row 0. With
        `mirror` below 1 each call is a step, the first one from the reference."""
        c, (states, actions, size) = self.config, self.features.shape
        policy = np.zeros((c.horizon, states, actions))
        values = np.zeros((c.horizon + 1, states))
        for h in reversed(range(c.horizon)):
            count = self.counts[h].sum(-1)
            inverse = np.linalg.inv(
                np.einsum("sa,sai,saj->ij", count, self.features, self.features)
                + c.ridge * np.eye(size)
            )
            following = values[h + 1]
            grid = dual_grid(float(following.max()), c.grid, c.divergence)
            seen = np.einsum("sai,sat->it", self.features, self.counts[h])
            means = tuple(
                t @ (inverse @ seen).T for t in transformed(following, grid, c.divergence)
            )
            lowest = float(following.min())
            robust = dual_values(means, grid, lowest, c.radius, c.divergence)
            robust = np.clip(robust, lowest, following.max())  # regressions may leave the range
            width = c.bonus * np.sqrt(np.diag(inverse))
            q = np.clip(self.reward + self.features @ (robust + width), 0.0, c.horizon - h)
            policy[h], values[h] = self.improved(h, q)
        return policy, values

    def improved(self, step: int, q: Array) -> tuple[Array, Array]:
        """The policy [S, A] of `step` and its values [S] for `q` [S, A]. A policy that was far from
        the reference may be worth less than 0 after what it was for is gone: it counts as 0."""
        c = self.config
        if c.mirror == 1:
            return regularised(q, self.reference, c.temperature)
        previous = self.log_policy[step]
        log_policy, value = mirror_step(q, previous, self.reference, c.temperature, c.mirror)
        self.log_policy[step] = log_policy
        return np.exp(log_policy), np.maximum(value, 0.0)


def robust_values(
    features: Array, factors: Array, reward: Array, config: DRRPOConfig, reference: Array
) -> tuple[Array, Array]:
    """The robust optimum of known `factors` [H, d, S]: its policy [H, S, A] and values
    [H + 1, S]."""
    horizon, size, states = factors.shape
    policy = np.zeros((horizon, *reference.shape))
    values = np.zeros((horizon + 1, states))
    for h in reversed(range(horizon)):
        worst = np.array(
            [
                worst_expectation(values[h + 1], factors[h, i], config.radius, config.divergence)
                for i in range(size)
            ]
        )
        q = reward + features @ worst
        policy[h], values[h] = regularised(q, reference, config.temperature)
    return policy, values


def returns(policy: Array, features: Array, factors: Array, reward: Array, state: int) -> float:
    """The expected return from `state` of `policy` [H, S, A] where `factors` [H, d, S] hold."""
    value = np.zeros(features.shape[0])
    for h in reversed(range(len(policy))):
        value = (policy[h] * (reward + features @ (factors[h] @ value))).sum(1)
    return float(value[state])


def require_simplex(name: str, array: Array) -> None:
    """Raise `DataError` unless the last axis holds distributions."""
    if (array < 0).any() or not np.allclose(array.sum(-1), 1.0):
        raise DataError(
            f"{name} must be at least 0 and sum to 1 over the last axis; sums lie in "
            f"[{array.sum(-1).min():g}, {array.sum(-1).max():g}], the least entry is "
            f"{array.min():g}"
        )

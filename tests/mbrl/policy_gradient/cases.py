"""Random batches with everything that recipes read: masks with gaps, turns, edge groups; and the
same batch as plain Python sequences, for implementations with loops."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mbrl.types import Trajectories
from tests.mbrl.policy_gradient import cases_credit, cases_domains, cases_hints

SIZES = (4, 5, 3, 1, 3)  # of the groups: mixed, mixed, all right, one alone, all wrong
STEPS, TURNS = 7, 3
# Names of `signals` beside random ones: drawn in [0, 1], alike at all steps of a sequence.
WHOLE = ("greedy_return", "gradient_norm_squared", "length_reward")
SIGNALS = ("value", "information_gain", "uniform", "process_reward")


@dataclass
class Step:
    """One step that is in the mask. `at` is its position in the row, `turn` its segment."""

    at: int
    turn: int
    segments: dict[str, int]
    log_prob: Tensor  # of the current policy, with gradient
    entropy_now: Tensor
    reward: float
    log_probs: dict[str, float]
    entropy: float
    sum_prob_squared: float
    signals: dict[str, float]
    groups: dict[str, int]
    terminated: bool
    truncated: bool


@dataclass
class Sequence:
    steps: list[Step]
    prompt: int
    advantage: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(step.reward for step in self.steps)

    def __len__(self) -> int:
        return len(self.steps)


def batch(seed: int, spread: float = 0.3, gaps: bool = True) -> tuple[Trajectories, Tensor, Tensor]:
    """A batch in float64, the current log-probs and the current entropies, both with gradients.
    `spread`: deviation of the log-ratios between policies; `gaps`: whether sequences have steps
    that the policy did not choose."""
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    rows = sum(SIZES)
    prompt = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    lengths = torch.randint(2, STEPS + 1, (rows,), generator=g)
    mask = torch.arange(STEPS) < lengths[:, None]
    chosen = uniform(rows, STEPS) < 0.85
    mask &= chosen | (not gaps)
    mask[:, 0] = True
    turn = (uniform(rows, STEPS) < 0.4).long().cumsum(1).clamp_max(TURNS - 1)
    turn -= turn[:, :1]
    right = (uniform(rows) < 0.5).double()
    right[prompt == 2], right[prompt == 4] = 1.0, 0.0
    first = torch.cumsum(torch.tensor((0, *SIZES[:-1])), 0)
    right[first[0]], right[first[0] + 1], right[first[1]], right[first[1] + 1] = 1, 0, 0, 1
    last = (STEPS - 1) - mask.flip(1).long().argmax(1)
    at_last = torch.arange(STEPS) == last[:, None]
    reward = torch.where(at_last, right[:, None], 0.0)
    base = -2 * uniform(rows, STEPS) - 0.1
    log_probs = {
        name: (base + spread * normal(rows, STEPS)).clamp_max(-0.01)
        for name in ("old", "behaviour", "proximal", "reference", "previous", "expert")
    }
    junk = torch.where(mask, 0.0, torch.nan)  # what padding holds must not matter
    signals = {name: uniform(rows, STEPS) + junk for name in SIGNALS}
    signals |= {name: uniform(rows, 1).expand(rows, STEPS) for name in WHOLE}
    truncated = at_last & (uniform(rows, 1) < 0.3)
    state = torch.randint(0, 4, (rows, STEPS), generator=g)
    t = Trajectories(
        obs=torch.zeros(rows, STEPS, 0),
        action=torch.zeros(rows, STEPS, dtype=torch.int64),
        reward=reward,
        next_obs=torch.zeros(rows, STEPS, 0),
        terminated=at_last & ~truncated,
        truncated=truncated,
        mask=mask,
        log_probs={k: v + junk for k, v in log_probs.items()},
        groups={"prompt": prompt[:, None].expand(rows, STEPS), "state": state},
        segments={"turn": turn},
        signals=signals,
        entropy=2 * uniform(rows, STEPS) + junk,
        sum_prob_squared=uniform(rows, STEPS) + junk,
    )
    log_prob = (base + spread * normal(rows, STEPS)).clamp_max(-0.01) + junk
    entropy = 2 * uniform(rows, STEPS)
    signals["entropy_history"] = 2 * uniform(rows, STEPS)
    signals["entropy_weight"] = torch.full_like(reward, 0.015)
    branch = torch.randint(0, 2, (rows, 1), generator=g)
    t.groups["node"] = (prompt[:, None] * TURNS + turn) * 2 + branch
    t.segments["decode"] = torch.randint(0, 3, (rows, STEPS), generator=g)
    cases_credit.add(t, g)
    cases_hints.add(t, g)
    cases_domains.add(t, g)
    return t, log_prob.requires_grad_(), entropy.requires_grad_()


def sequences(t: Trajectories, log_prob: Tensor, entropy: Tensor) -> list[Sequence]:
    """The batch as lists of the steps that count."""
    assert t.entropy is not None and t.sum_prob_squared is not None
    parts = (t.segments, t.log_probs, t.signals, t.groups)
    # Tensors give their numbers at once, since one after the other is most of a test's time.
    segments, log_probs, signals, groups = ({k: v.tolist() for k, v in p.items()} for p in parts)
    numbers = (t.reward, t.entropy, t.sum_prob_squared, t.terminated, t.truncated)
    reward, old_entropy, squared, terminated, truncated = (v.tolist() for v in numbers)
    current, entropies = ([row.unbind() for row in v.unbind()] for v in (log_prob, entropy))
    found = []
    for b, row in enumerate(t.mask.tolist()):
        steps = [
            Step(
                at=i,
                turn=segments["turn"][b][i],
                segments={k: v[b][i] for k, v in segments.items()},
                log_prob=current[b][i],
                entropy_now=entropies[b][i],
                reward=reward[b][i],
                log_probs={k: v[b][i] for k, v in log_probs.items()},
                entropy=old_entropy[b][i],
                sum_prob_squared=squared[b][i],
                signals={k: float(v[b][i]) for k, v in signals.items()},
                groups={k: v[b][i] for k, v in groups.items()},
                terminated=terminated[b][i],
                truncated=truncated[b][i],
            )
            for i, counts in enumerate(row)
            if counts
        ]
        found.append(Sequence(steps, groups["prompt"][b][0]))
    return found

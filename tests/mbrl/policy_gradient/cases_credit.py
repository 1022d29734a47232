"""What recipes of baselines, turns and selections read beside the common fields: drawn after them,
so that these stay as they are."""

import torch
from torch import Tensor

from mbrl.types import Trajectories

# In [0, 1]: at every step; of every turn; of every sequence; of every prompt.
STEPS = ("match_score", "progress", "grounding", "subgoal", "switch", "value_high", "value_switch")
# (Nothing reads `matched`; with it the others are those that other code was recorded on.)
TURNS = ("accuracy", "confidence", "matched", "coverage", "utterance_q", "utterance_v", "void")
SEQUENCES = (
    "consistency",
    "format_reward",
    "flawed",
    "penalty",
    "predicted_score",
    "consistency_reward",
    "group_similarity",
    "majority_reward",
    "vine_window",
)
PROMPTS = ("hard", "prior_value", "tracked_value", "reference_value", "prompt_confidence")


def add(t: Trajectories, g: torch.Generator) -> None:
    signals, groups, (batch, steps) = t.signals, t.groups, t.mask.shape
    prompt, turn = t.groups["prompt"][:, 0], t.segments["turn"]
    junk = torch.where(t.mask, 0.0, torch.nan)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64)

    def choice(below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, generator=g)

    signals |= {name: uniform(batch, steps) + junk for name in STEPS}
    signals |= {name: uniform(batch, steps).gather(1, turn) + junk for name in TURNS}
    signals |= {name: uniform(batch, 1).expand(batch, steps) for name in SEQUENCES}
    signals |= {name: uniform(batch)[prompt, None].expand(batch, steps) for name in PROMPTS}
    signals |= {
        name: torch.full((batch, steps), value, dtype=torch.float64)
        for name, value in (("quantile_low", 0.6), ("quantile_high", 1.4))
    }
    signals["predicted_score"] = 6 * signals["predicted_score"]
    signals["accuracy"] = signals["accuracy"] ** 0.2
    signals["confidence"] = signals["confidence"] ** 0.2
    t.log_probs["degraded"] = -2 * uniform(batch, steps) - 0.1 + junk
    # States belong to turns; longer histories split them.
    state = t.groups["state"].gather(1, turn)
    first, second = choice(2, batch, steps).gather(1, turn), choice(2, batch, steps).gather(1, turn)
    row = torch.arange(batch) - torch.searchsorted(prompt, prompt)
    whole = {
        "cluster": choice(3, batch),
        "set": prompt * 3 + row // 2,
        "pair": prompt // 2,
        "paraphrases": prompt // 2,
        "bundle": prompt // 2,
        "paper": row,
    }
    groups |= {name: ids[:, None].expand(batch, steps) for name, ids in whole.items()}
    groups |= {"state": state, "history_2": state * 2 + first}
    groups["history_3"] = groups["history_2"] * 2 + second
    # A new option begins at some turns; the first one always opens one.
    opens = choice(2, batch, steps)
    opens[:, 0] = 0
    t.segments["option"] = opens.cumsum(1).gather(1, turn)

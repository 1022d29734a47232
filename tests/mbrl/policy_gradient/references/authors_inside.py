"""Authors' formulas that stand in the middle of a longer function: their lines, run on a batch."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from tests.mbrl.policy_gradient.references.batches import EVEN
from tests.mbrl.policy_gradient.references.extract import Case, Sources

Batch = dict[str, Any]


def cases(s: Sources) -> Iterator[Case]:
    yield mc_grpo(s)


def mc_grpo(s: Sources) -> Case:
    """Advantages and who is left out, then the loss of the others: two places of one function."""
    path = "lotusroot-kim/MC-GRPO/src/open_r1/grpo_trainer_math.py"
    trainer = SimpleNamespace(
        args=SimpleNamespace(mc=True, delta=None, use_bias_correction_kl=False),
        beta=0.04,
        epsilon_low=0.2,
        epsilon_high=0.2,
        loss_type="grpo",
        use_vllm=False,
        tools=None,
        current_gradient_accumulation_steps=1,
    )

    def loss(b: Batch) -> Tensor:
        rewards = b["reward"].sum(1)
        given = {"self": trainer, "rewards": rewards, "actual_num_generations": EVEN}
        found = s.run(path, "median_mask = None", "advantages = advantages / mad_rewards", given)
        keep = ~found["median_mask"]
        given = {
            "self": trainer,
            "inputs": {"ref_per_token_logps": b["reference"][keep]},
            "advantages": found["advantages"][keep][:, None],
            "per_token_logps": b["log_prob"][keep],
            "log_importance_weights": (b["log_prob"] - b["old"])[keep],
            "completion_mask": b["mask"][keep],
            "entropy_mask": None,
        }
        first, last = "coef_1 = torch.exp(log_importance_weights)", "gradient_accumulation_steps"
        value: Tensor = s.run(path, first, last, given)["loss"]
        return value

    return Case("mc_grpo", "lotusroot-kim/MC-GRPO@da07745", loss, "distinct")

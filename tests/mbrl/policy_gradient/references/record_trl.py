"""Records what TRL's GRPO loss makes of the test batches: losses and gradients, numbers only.

    pip download --no-deps trl==1.16.0 && unzip -d trl trl-*.whl
    python -m tests.mbrl.policy_gradient.references.record_trl trl

writes trl.json beside this file. Of the trainer only the methods that compute the loss are run, on
given log-probs; advantages are the z-scores of the rewards, as it takes them.
"""

import ast
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

from mbrl.policy_gradient import RECIPES
from tests.mbrl.policy_gradient.references.batches import arrays
from tests.mbrl.policy_gradient.references.record_verl import HERE, SEEDS

METHODS = ("_compute_loss", "get_gamma_weights", "get_off_policy_mask", "get_high_entropy_mask")
# The trainer's settings for each recipe; `args.` ones stand in its arguments.
SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"beta": 0.04},
    "dr_grpo": {"loss_type": "dr_grpo", "std": False},
    "two_sided_grpo": {"loss_type": "bnpo", "args.delta": 4.0, "beta": 0.001},
    "gspo": {"importance_sampling_level": "sequence", "low": 3e-4, "high": 4e-4},
    "luspo": {
        "importance_sampling_level": "sequence",
        "loss_type": "luspo",
        "low": 3e-4,
        "high": 4e-4,
    },
    "cispo": {"loss_type": "cispo", "high": 5.0},
    "sapo_soft_gate": {"loss_type": "sapo"},
    "vespo": {"loss_type": "vespo"},
    "off_policy_mask_grpo": {
        "beta": 0.001,
        "args.use_bias_correction_kl": True,
        "off_policy_mask_threshold": 0.1,
    },
    "top_entropy_grpo": {"loss_type": "bnpo", "high": 0.28, "top_entropy_quantile": 0.2},
    "truncated_is_grpo": {"loss_type": "bnpo", "use_vllm": True},
}


def methods(folder: Path) -> dict[str, Any]:
    """The methods by name, as functions."""
    source = (folder / "trl/trainer/grpo_trainer.py").read_text()
    found: dict[str, Any] = {}
    scope = {"torch": torch, "math": math, "nanmin": torch.min, "nanmax": torch.max}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name in METHODS:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), "grpo_trainer.py", "exec"), scope)
            found[node.name] = scope[node.name]
    return found


def trainer(found: dict[str, Any], b: dict[str, Any], settings: dict[str, Any]) -> MagicMock:
    arguments = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
    arguments |= {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    arguments |= {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0}
    arguments |= {"vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
    arguments |= {k[5:]: v for k, v in settings.items() if k.startswith("args.")}
    self = MagicMock(
        loss_type=settings.get("loss_type", "grpo"),
        importance_sampling_level=settings.get("importance_sampling_level", "token"),
        epsilon_low=settings.get("low", 0.2),
        epsilon_high=settings.get("high", 0.2),
        beta=settings.get("beta", 0.0),
        off_policy_mask_threshold=settings.get("off_policy_mask_threshold"),
        use_vllm=settings.get("use_vllm", False),
        vllm_importance_sampling_correction=True,
        top_entropy_quantile=settings.get("top_entropy_quantile", 1.0),
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        max_completion_length=1024,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(**arguments),
    )
    self.accelerator.num_processes = 1
    self.accelerator.reduce = lambda value, **_: value
    self.accelerator.gather = self.accelerator.gather_for_metrics = lambda value: value
    self._get_per_token_logps_and_entropies = lambda *_, **__: (
        b["log_prob"],
        b["entropy"],
        None,
    )
    self.accelerator.pad_across_processes = lambda value, **_: value
    self.get_high_entropy_mask = lambda *parts: found["get_high_entropy_mask"](self, *parts)
    self.get_gamma_weights = torch.no_grad()(found["get_gamma_weights"])
    self.get_off_policy_mask = found["get_off_policy_mask"]
    return self


def z_scores(b: dict[str, Any], std: bool) -> Tensor:
    """[B]: as the trainer scores generations, its epsilon included."""
    total, prompt = b["reward"].sum(1), torch.as_tensor(b["prompt"].tolist())
    found = torch.zeros_like(total)
    for p in prompt.unique():
        mine = total[prompt == p]
        scale = mine.std() + 1e-4 if std else 1.0
        found[prompt == p] = (mine - mine.mean()) / scale
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    version = next(folder.glob("trl-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    out: dict[str, Any] = {"trl": version, "seeds": list(SEEDS), "recipes": {}}
    found = methods(folder)
    for name, settings in SETTINGS.items():
        assert name in RECIPES, name
        out["recipes"][name] = []
        for seed in SEEDS:
            b = arrays("all", seed)
            rows = len(b["mask"])
            ids = torch.zeros(rows, b["mask"].shape[1], dtype=torch.int64)
            weight = (b["old"] - b["behaviour"]).exp().clamp(max=2.0)
            inputs = {
                "prompt_ids": ids[:, :1],
                "prompt_mask": ids[:, :1],
                "completion_ids": ids,
                "completion_mask": b["mask"],
                "advantages": z_scores(b, settings.get("std", True)),
                "old_per_token_logps": b["old"],
                "ref_per_token_logps": b["reference"],
                "num_items_in_batch": b["mask"].sum(),
            }
            if settings.get("use_vllm"):
                inputs["importance_sampling_ratio"] = weight
            value = found["_compute_loss"](trainer(found, b, settings), None, inputs)
            gradient = torch.autograd.grad(value, b["log_prob"])[0]
            rounded = [[float(f"{x:.10g}") for x in row] for row in gradient.tolist()]
            out["recipes"][name].append({"loss": value.item(), "gradient": rounded})
    (HERE / "trl.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

"""Records what verl's functions make of the test batches: losses and gradients, numbers only.

    pip download --no-deps verl==0.9.1 && unzip -d verl verl-*.whl
    python -m tests.mbrl.policy_gradient.references.record_verl verl

writes verl.json beside this file. Only the mathematics is run: verl's configuration and worker
modules, and the packages that they import, are stood in for.
"""

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

from mbrl.policy_gradient import RECIPES
from tests.mbrl.policy_gradient.references.batches import arrays

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)


class Config(types.SimpleNamespace):
    """verl's actor configuration, as far as losses read it."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def load(folder: Path) -> Any:
    """verl.trainer.ppo.core_algos from an unpacked wheel."""
    for name in ("omegaconf", "tensordict", "transformers", "verl", "verl.utils"):
        sys.modules[name] = MagicMock(__path__=[])
    for name in ("trainer", "trainer.config", "workers", "workers.config", "utils.device"):
        sys.modules[f"verl.{name}"] = MagicMock(__path__=[])
    sys.modules["verl.trainer.config"].AlgoConfig = type("AlgoConfig", (), {})
    sys.modules["verl.workers.config"].ActorConfig = Config
    sys.modules["verl.utils.import_utils"] = MagicMock(deprecated=lambda *a, **k: lambda f: f)
    functional = from_file("verl.utils.torch_functional", folder / "verl/utils/torch_functional.py")
    sys.modules["verl.utils"].torch_functional = functional
    sys.modules["verl"].utils = sys.modules["verl.utils"]
    return from_file("core_algos", folder / "verl/trainer/ppo/core_algos.py")


def from_file(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def specifications(v: Any) -> dict[str, Callable[[dict[str, Any]], Tensor]]:
    """The loss of every recipe that verl has, from a batch's arrays."""

    def actor(**changes: Any) -> Config:
        base = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
        base |= {"clip_ratio_c": 1e9, "global_batch_info": {}, "policy_loss": None}
        return Config(**base | changes)

    def policy(b: dict[str, Any], advantage: Tensor, loss: str, agg: str, config: Config) -> Tensor:
        parts = (b["old"], b["log_prob"], advantage, b["mask"], agg, config)
        return v.get_policy_loss_fn(loss)(*parts)[0]

    def z(b: dict[str, Any], std: bool = True) -> Tensor:
        given = (b["reward"].clone(), b["mask"], b["prompt"])
        return v.compute_grpo_outcome_advantage(*given, 1e-4, std)[0]

    def outcome(b: dict[str, Any], name: str, **more: Any) -> Tensor:
        function = getattr(v, f"compute_{name}_outcome_advantage")
        return function(b["reward"].clone(), response_mask=b["mask"], index=b["prompt"], **more)[0]

    def kl(b: dict[str, Any], kind: str, agg: str) -> Tensor:
        penalty = v.kl_penalty_forward(b["log_prob"], b["reference"], kind)
        return v.agg_loss(penalty, b["mask"], agg)

    def gpg(b: dict[str, Any], advantage: Tensor) -> Tensor:
        return policy(b, advantage, "gpg", "seq-mean-token-sum", actor())

    def remax(b: dict[str, Any]) -> Tensor:
        greedy = b["greedy_return"][:, 0]
        return gpg(b, v.compute_remax_outcome_advantage(b["reward"], greedy, b["mask"])[0])

    def optimal(b: dict[str, Any]) -> Tensor:
        parts = (b["reward"], b["mask"], b["prompt"], b["old"], b["sum_prob_squared"])
        given = v.compute_optimal_token_baseline_advantage(*parts, handle_zero_tail=False)
        return gpg(b, given[0])

    def ppo(b: dict[str, Any]) -> Tensor:
        parts = (b["reward"], b["value"], b["mask"], 0.99, 0.95)
        advantage = v.compute_gae_advantage_return(*parts)[0]
        return policy(b, advantage, "vanilla", "token-mean", actor())

    def normed(b: dict[str, Any]) -> Tensor:
        plain = policy(b, z(b, False), "vanilla", "seq-mean-token-sum", actor())
        return plain / 1024

    narrow = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    wide = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    open_low = {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}
    covariance = Config(clip_cov_ratio=1.0, clip_cov_lb=0.1, clip_cov_ub=5.0)
    penalty = Config(kl_cov_ratio=0.1, ppo_kl_coef=1.0)
    per_token, per_row = "token-mean", "seq-mean-token-mean"
    baseline = "reinforce_plus_plus_baseline"
    return {
        "grpo": lambda b: (
            policy(b, z(b), "vanilla", per_row, actor()) + 0.04 * kl(b, "k3", per_row)
        ),
        "dr_grpo": normed,
        "rloo": lambda b: gpg(b, outcome(b, "rloo")),
        "remax": remax,
        "ppo": ppo,
        "reinforce_pp_baseline": lambda b: (
            policy(b, outcome(b, baseline), "vanilla", per_token, actor())
            + 0.01 * kl(b, "k2", per_token)
        ),
        "grpo_passk": lambda b: policy(
            b,
            outcome(b, "grpo_passk", config={"norm_adv_by_std_in_grpo": False}),
            "vanilla",
            per_token,
            actor(),
        ),
        "opo": lambda b: gpg(b, outcome(b, "opo")),
        "optimal_token_baseline": optimal,
        "dual_clip_grpo": lambda b: policy(b, z(b), "vanilla", per_token, actor(clip_ratio_c=3.0)),
        "gspo_token": lambda b: policy(b, z(b), "gspo", per_row, actor(**narrow)),
        "gspo": lambda b: policy(b, z(b), "gspo", per_row, actor(**narrow)),
        "gmpo": lambda b: policy(b, z(b), "geo_mean", per_row, actor(**wide)),
        "cispo": lambda b: policy(b, z(b), "cispo", per_token, actor(**open_low)),
        "sapo_soft_gate": lambda b: policy(
            b, z(b), "sapo", per_row, actor(tau_pos=1.0, tau_neg=1.05)
        ),
        "clip_cov": lambda b: policy(b, z(b), "clip_cov", per_token, actor(policy_loss=covariance)),
        "kl_cov": lambda b: policy(b, z(b), "kl_cov", per_token, actor(policy_loss=penalty)),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    version = next(folder.glob("verl-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    found: dict[str, Any] = {"verl": version, "seeds": list(SEEDS), "recipes": {}}
    for name, loss in specifications(load(folder)).items():
        assert name in RECIPES, name
        found["recipes"][name] = []
        for seed in SEEDS:
            b = arrays("all", seed)
            value = loss(b)
            gradient = torch.autograd.grad(value, b["log_prob"])[0]
            rounded = [[float(f"{x:.10g}") for x in row] for row in gradient.tolist()]
            found["recipes"][name].append({"loss": value.item(), "gradient": rounded})
    (HERE / "verl.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

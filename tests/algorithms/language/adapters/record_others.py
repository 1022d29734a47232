"""Records how rLLM and prime-rl call their hooks, and what their own functions give: numbers only.

    git clone https://github.com/rllm-org/rllm && git clone https://github.com/PrimeIntellect-ai/prime-rl
    python -m tests.algorithms.language.adapters.record_others rllm prime-rl

writes others.json beside this file. Configuration, types and logging of both are stood in for.
"""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.25, 0.5], [2.0, 1.0, 0.0]]
LENGTHS = (4, 1, 3)


def module(name: str, folder: Path, path: str) -> types.ModuleType:
    found = types.ModuleType(name)
    sys.modules[name] = found
    text = subprocess.run(
        ["git", "-C", str(folder), "show", f"HEAD:{path}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exec(compile(text, path, "exec"), found.__dict__)
    return found


def commit(folder: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def rllm(folder: Path) -> dict[str, Any]:
    kinds = ("GRPO", "REINFORCE", "REINFORCE_PLUS_PLUS_BASELINE", "PRPO", "RLOO")
    names = type("rLLMAdvantageEstimator", (), {kind: kind.lower() for kind in kinds})
    for name in ("rllm", "rllm.trainer", "rllm.trainer.algorithms", "rllm.utils", "rllm.types"):
        sys.modules[name] = MagicMock(__path__=[])
    sys.modules["rllm.trainer.algorithms.config"] = MagicMock(rLLMAdvantageEstimator=names)
    filters = MagicMock(DuplicateLoggingFilter=lambda: lambda record: True)
    sys.modules["rllm.utils.logging"] = filters
    base = "rllm/trainer/algorithms"
    module("rllm.trainer.algorithms.rl_algo", folder, f"{base}/rl_algo.py")
    code = module("rllm.trainer.algorithms.advantage", folder, f"{base}/advantage.py")
    found: dict[str, Any] = {"commit": commit(folder), "rewards": REWARDS}
    for name, std in (("rloo", True), ("grpo", False)):
        config = types.SimpleNamespace(
            stepwise_advantage_mode="broadcast",
            use_precomputed_advantage=False,
            estimator_map={},
            estimator="watched",
            norm_adv_by_std_in_grpo=std,
        )
        estimator = code.get_rllm_adv_estimator(name)

        def watched(*, of: Any = estimator, **given: Any) -> Any:
            found["arguments"] = sorted(given)
            return of(**given)

        code.register_rllm_adv_estimator("watched")(watched)
        groups = [group(rewards) for rewards in REWARDS]
        code.collect_reward_and_advantage_from_trajectory_groups(groups, config)
        found[name] = [[t.steps[0].advantage for t in g.trajectories] for g in groups]
    return found


def group(rewards: list[float]) -> Any:
    def answer(reward: float) -> Any:
        step = types.SimpleNamespace(advantage=None, response_ids=[1, 2, 3])
        return types.SimpleNamespace(reward=reward, steps=[step])

    return types.SimpleNamespace(group_role="default", trajectories=[answer(r) for r in rewards])


def prime_rl(folder: Path) -> dict[str, Any]:
    for name in ("prime_rl", "prime_rl.configs", "prime_rl.utils", "prime_rl.utils.utils"):
        sys.modules[name] = MagicMock(__path__=[])
    custom = type("CustomLossConfig", (), {"import_path": "clip", "kwargs": {"range": 0.2}})
    other = types.SimpleNamespace
    configs = MagicMock(CustomLossConfig=custom, DefaultLossConfig=other, IPOLossConfig=list)
    sys.modules["prime_rl.configs.trainer"] = configs
    sys.modules["beartype"] = MagicMock(beartype=lambda f: f)
    shapes = MagicMock(jaxtyped=lambda **_: lambda f: f)
    sys.modules["jaxtyping"] = shapes
    torch.compile = lambda *a, **k: lambda f: f  # type: ignore[assignment]
    code = module("prime_rl.trainer.rl.loss", folder, "src/prime_rl/trainer/rl/loss.py")
    found: dict[str, Any] = {"commit": commit(folder)}

    def clip(inputs: Any, range: float) -> Any:
        found["inputs"] = sorted(vars(inputs))
        ratio = (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
        parts = (ratio, ratio.clamp(1 - range, 1 + range))
        gain = torch.min(*(part * inputs.advantages for part in parts))
        return code.LossOutputs(loss=-gain[inputs.loss_mask].sum(), metrics={})

    code.import_object = lambda path: clip
    draw = np.random.default_rng(0)
    now = [draw.normal(-1, 0.3, n) for n in LENGTHS]
    then = [draw.normal(-1, 0.3, n) for n in LENGTHS]
    gain = [draw.normal(size=n) for n in LENGTHS]
    mask = [draw.random(n) < 0.8 for n in LENGTHS]
    arrays = {"now": now, "then": then, "advantages": gain, "mask": mask}
    lists: dict[str, list[Tensor]] = {k: [torch.tensor(x) for x in v] for k, v in arrays.items()}
    count = int(sum(m.sum() for m in mask))
    value = code.compute_loss(
        lists["now"],
        lists["then"],
        None,
        lists["advantages"],
        lists["mask"],
        None,
        None,
        None,
        code.setup_rl_loss_fn(custom()),
        count,
        1,
        1,
    )[0]
    found |= {k: [x.tolist() for x in v] for k, v in arrays.items()}
    return found | {"loss": float(value)}


if __name__ == "__main__":
    recorded = {"rllm": rllm(Path(sys.argv[1])), "prime_rl": prime_rl(Path(sys.argv[2]))}
    (HERE / "others.json").write_text(json.dumps(recorded) + "\n")

"""The loss of a published model's conversations against TRL's trainer on the same batch. Skips
where trl is not installed (version 1.16.0 was compared) or the data folder has no such model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.optional import needed

trl = needed("trl")
datasets = needed("datasets")

from algorithms.language.learner import ModelConfig  # noqa: E402
from algorithms.language.models.passes import passes  # noqa: E402
from algorithms.language.policy_gradient import (  # noqa: E402
    LanguageConfig,
    LanguagePolicyGradient,
)
from mbrl.data.locate import data_home  # noqa: E402
from mbrl.policy_gradient import loss  # noqa: E402

STORIES = data_home() / "lm" / "stories260K-hf"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not STORIES.is_dir(), reason="no stories260K-hf"),
]
OPTIONS: dict[str, dict[str, Any]] = {  # of TRL, for the formula of our recipe
    "grpo": {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
    "dr_grpo": {"loss_type": "dr_grpo", "beta": 0.0, "max_completion_length": 1024},
    "gspo": {
        "loss_type": "grpo",
        "beta": 0.0,
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
}


@pytest.mark.parametrize("recipe", OPTIONS)
def test_the_loss_is_trls(recipe: str, tmp_path: Path) -> None:
    """At the third minibatch of a round, where ratios are no longer 1, from log-probs that TRL
    makes itself by its own pass through the model."""
    config = LanguageConfig(
        task="story",
        levels=(1,),
        recipe=recipe,
        model=ModelConfig(str(STORIES), end="<s>"),
        prompts=4,
        group=6,
        minibatches=3,
        learning_rate=1e-3,
        warm_up=1,
    )
    agent = LanguagePolicyGradient(config=config)
    agent.collect()
    for _ in range(2):
        agent.update(agent.next_batch())
    batch = agent.next_batch()
    data = batch.rollouts.data
    log_prob, entropy = agent.current(batch.rollouts, passes(data.mask, 256))
    mine, metrics = loss(agent.recipe, log_prob, data, batch.estimate, entropy)
    assert float(metrics["policy/log_ratio"]) > 0.05

    first = int(data.mask.any(0).nonzero()[0])
    assert bool(data.mask[:, first].all())  # the prompts are equally long
    theirs = trainer(agent, recipe, tmp_path)._compute_loss(agent.model.inner, inputs(batch, first))
    print(f"{recipe}: {float(mine):.6f}, TRL {float(theirs):.6f}")
    assert float(theirs) == pytest.approx(float(mine), rel=1e-3, abs=2e-6)


def trainer(agent: LanguagePolicyGradient, recipe: str, folder: Path) -> Any:
    arguments = trl.GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        num_generations=6,
        per_device_train_batch_size=6,
        bf16=False,
        **OPTIONS[recipe],
    )
    return trl.GRPOTrainer(
        model=agent.model.inner,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["Tom saw a big dog."] * 6}),
        processing_class=agent.codec.tokenizer,
    )


def inputs(batch: Any, first: int) -> dict[str, Any]:
    """A minibatch in TRL's form: what was said begins at step `first` of all rows."""
    rollouts = batch.rollouts
    data = rollouts.data
    advantage = batch.estimate.advantage[:, first]
    result = {
        "prompt_ids": rollouts.tokens[:, : first + 1],
        "prompt_mask": torch.ones_like(rollouts.tokens[:, : first + 1]),
        "completion_ids": rollouts.tokens[:, first + 1 :],
        "completion_mask": data.mask[:, first:].long(),
        "advantages": advantage,
        "old_per_token_logps": data.log_probs["old"][:, first:],
        "num_items_in_batch": data.mask.sum(),
    }
    if "reference" in data.log_probs:
        result["ref_per_token_logps"] = data.log_probs["reference"][:, first:]
    return result

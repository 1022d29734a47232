"""TRL's trainer with recipes: a tiny model is really trained, and TRL's own losses are ours."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.adapters import loss
from algorithms.language.adapters import trl as adapter
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe, recipe
from mbrl.policy_gradient.axes.aggregation import SequenceSum
from tests.optional import needed

trl = needed("trl")
peft = needed("peft")
tokenizers = needed("tokenizers")
transformers = needed("transformers")
tables = needed("datasets.arrow_dataset")
LETTERS, END, PAD = "abcdefgh ", 9, 10
PROMPTS = ["bcd e", "fgh", "cde", "hg f"]


def tokenizer() -> Any:
    vocab = {c: i for i, c in enumerate(LETTERS)} | {"<end>": END, "<pad>": PAD, "<unk>": 11}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    names = {"eos_token": "<end>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    ids = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": None}
    config = transformers.LlamaConfig(vocab_size=12, **sizes, **heads, **ids)
    return transformers.LlamaForCausalLM(config)


def share_of_a(completions: list[str], **others: Any) -> list[float]:
    return [text.count("a") / 8 for text in completions]


def trainer(folder: Path, cls: Any = None, reward: Any = share_of_a, **changes: Any) -> Any:
    own = {k: changes.pop(k) for k in ("recipe", "peft_config") if k in changes}
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "max_steps": 20,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 16,
        "num_generations": 8,
        "max_completion_length": 8,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
    }
    return (cls or adapter.trainer_class())(
        model=model(),
        args=trl.GRPOConfig(**values | changes),
        reward_funcs=reward,
        train_dataset=tables.Dataset.from_dict({"prompt": PROMPTS * 40}),
        processing_class=tokenizer(),
        **own,
    )


@pytest.mark.parametrize("name", ["gspo", pytest.param("rloo", marks=pytest.mark.long)])
def test_a_tiny_model_learns(name: str, tmp_path: Path) -> None:
    ours = trainer(tmp_path, recipe=name)
    ours.train()
    rewards = [h["reward"] for h in ours.state.log_history if "reward" in h]
    assert len(rewards) == 20 and rewards[0] < 0.2
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.3
    assert all(h["policy/kept"] == 1 for h in ours.state.log_history if "policy/kept" in h)


SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
SAME = {
    "gspo": (recipe("gspo"), SEQUENCE | {"loss_type": "grpo"}),
    "luspo": (recipe("luspo"), SEQUENCE | {"loss_type": "luspo"}),
    "dr_grpo": (
        dataclasses.replace(recipe("dr_grpo"), aggregation=SequenceSum(8.0)),
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
    ),
    "grpo": (dataclasses.replace(recipe("grpo"), regularisers=()), {"loss_type": "grpo"}),
    "dual": (
        dataclasses.replace(recipe("two_sided_grpo"), regularisers=()),
        {"loss_type": "bnpo", "delta": 4.0},
    ),
}


@pytest.mark.parametrize(
    ("chosen", "settings"),
    [
        pytest.param(*both, id=name, marks=[] if name in ("gspo", "grpo") else pytest.mark.long)
        for name, both in SAME.items()
    ],
)
def test_updates_are_those_of_trl(chosen: Recipe, settings: dict[str, Any], tmp_path: Path) -> None:
    """The same answers by the same seed, and three updates on them: ratios leave 1."""
    several = {"num_iterations": 3, "max_steps": 3, "learning_rate": 1e-3}
    theirs = trainer(tmp_path / "theirs", trl.GRPOTrainer, **settings, **several)
    theirs.train()  # before the other is made: both begin with the seed
    ours = trainer(tmp_path / "ours", recipe=chosen, **several)
    ours.train()
    ratios = [h["policy/ratio_max"] for h in ours.state.log_history if "policy/ratio_max" in h]
    assert ratios[0] == pytest.approx(1.0, abs=1e-4) and ratios[2] > 1.001
    before = model().state_dict()
    for name, value in theirs.model.state_dict().items():
        moved = (value - before[name]).norm()
        assert moved > 0
        assert (ours.model.state_dict()[name] - value).norm() < 0.01 * moved, name


def test_the_experts_of_a_mixture_are_balanced_as_trl_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mixture() -> Any:
        torch.manual_seed(0)
        config = transformers.MixtralConfig(
            vocab_size=12, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, num_local_experts=4,
            num_experts_per_tok=2, pad_token_id=PAD, eos_token_id=END, bos_token_id=None,
        )  # fmt: skip
        return transformers.MixtralForCausalLM(config)

    monkeypatch.setitem(globals(), "model", mixture)
    several = {"max_steps": 2, "learning_rate": 1e-3, "router_aux_loss_coef": 0.5}
    theirs = trainer(tmp_path / "theirs", trl.GRPOTrainer, loss_type="grpo", **several)
    theirs.train()
    ours = trainer(tmp_path / "ours", recipe=SAME["grpo"][0], **several)
    ours.train()
    before, mine = mixture().state_dict(), ours.model.state_dict()
    for name, value in theirs.model.state_dict().items():
        assert (mine[name] - value).norm() <= 0.01 * (value - before[name]).norm(), name
    logged = [
        [h["aux_loss"] for h in t.state.log_history if "aux_loss" in h] for t in (theirs, ours)
    ]
    assert len(logged[0]) == 2 and logged[1] == pytest.approx(logged[0], rel=1e-4)


def test_an_answer_ends_with_its_last_token() -> None:
    """A turn that ended before a tool's result, then one that was cut; padding; no token at all."""
    ids = torch.tensor([[1, END, 2, 3], [1, 2, END, PAD], [1, 2, 3, END], [END, PAD, PAD, PAD]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    found = adapter.ended({"completion_ids": ids, "completion_mask": mask}, [END])
    assert found.tolist() == [False, True, True, False]


def test_a_reference_is_the_model_without_its_adapter(tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    ours = trainer(tmp_path, recipe="grpo", beta=1.0, peft_config=config, max_steps=2)
    ours.train()
    assert ours.state.log_history[0]["policy/loss"] is not None
    with pytest.raises(ConfigError, match="set beta above 0"):
        trainer(tmp_path, recipe="grpo", peft_config=config)
    with pytest.raises(ConfigError, match="leave beta at 0"):
        trainer(tmp_path, recipe="gspo", beta=0.1, peft_config=config)


def test_an_answer_without_a_score_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every mean: the loss does not see its tokens."""
    seen: list[torch.Tensor] = []

    def spy(recipe: Any, log_prob: Any, advantage: Any, mask: Any, **others: Any) -> Any:
        seen.append(mask.any(1))
        return loss(recipe, log_prob, advantage, mask, **others)

    monkeypatch.setattr(adapter, "loss", spy)

    def some(completions: list[str], **others: Any) -> list[float | None]:
        scores = share_of_a(completions)
        return [None if i % 8 == 0 else s for i, s in enumerate(scores)]

    ours = trainer(tmp_path, recipe="rloo", reward=some, max_steps=1)
    ours.train()
    rows = torch.cat(seen)
    assert len(rows) >= 8 and int(rows.sum()) == len(rows) * 7 // 8
    assert ours.state.log_history[0]["policy/kept"] == 1.0


def test_settings_that_would_not_count_are_refused(tmp_path: Path) -> None:
    for name, value in (("loss_type", "sapo"), ("epsilon", 0.1), ("scale_rewards", "none")):
        with pytest.raises(ConfigError, match=f"{name} is .*leave {name} out"):
            trainer(tmp_path, recipe="gspo", **{name: value})
    with pytest.raises(ConfigError, match=r"ppo needs signals.value.*those it serves: .*gspo"):
        trainer(tmp_path, recipe="ppo")


def test_answers_that_were_cut_off_are_left_out_by_dapo(tmp_path: Path) -> None:
    """They are as long as can be, so that their share of tokens is at least that of answers."""
    ours = trainer(tmp_path, recipe="dapo", max_steps=1)
    ours.train()
    first = ours.state.log_history[0]
    cut = first["completions/clipped_ratio"]
    assert 0 < cut < 1 and 0 < first["policy/kept"] <= 1 - cut + 1e-6

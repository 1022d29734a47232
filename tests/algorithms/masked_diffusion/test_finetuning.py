"""Masked models trained by reward: log-probabilities, the loss, learning, going on."""

import copy
import functools

import pytest
import torch
from torch import Tensor

from algorithms.language.models.transformer import TransformerConfig
from algorithms.masked_diffusion import (
    DecodingConfig,
    Layout,
    MaskedFinetuning,
    MaskedFinetuningConfig,
    MaskedModel,
    MaskedModelConfig,
    fit,
    solved,
)
from algorithms.masked_diffusion.decoding import Decoded
from algorithms.masked_diffusion.finetuning import Round
from mbrl.errors import ConfigError
from tests.algorithms.masked_diffusion.copying import Copying
from tests.behaviour.test_resume import assert_same

SMALL = MaskedModelConfig(TransformerConfig(width=16, layers=1, heads=2, hidden=32))


@functools.cache
def fitted() -> tuple[Layout, MaskedModel]:
    """A model that solves some problems."""
    layout = Layout(Copying())
    model = MaskedModel(layout, SMALL, torch.Generator().manual_seed(0))
    fit(model, layout, 40, rows=32, learning_rate=5e-3)
    return layout, model


def tuning(seed: int = 0, **values: object) -> MaskedFinetuning:
    layout, model = fitted()
    given = {"decoding": DecodingConfig(steps=2), "prompts": 3, "group": 4, "epochs": 2} | values
    config = MaskedFinetuningConfig(**given)  # type: ignore[arg-type]
    return MaskedFinetuning(model, layout, config, seed=seed)


def test_log_probs_are_those_of_the_decoding() -> None:
    """Of every token at the region before its own step, so that ratios are 1 right after."""
    t = tuning()
    done = t.answers(t.problems())
    own = t.log_probs(t.model, done, t.inputs(done))
    order = t.order(done.decoded)
    torch.testing.assert_close(own, done.decoded.log_prob.gather(1, order), rtol=1e-4, atol=1e-5)
    segments = t.segments(done.decoded)
    assert (segments.diff(dim=1) >= 0).all()
    counts = [int((segments[0] == k).sum()) for k in range(2)]
    assert counts == t.counts


def test_one_step_reads_a_region_that_is_masked_whole() -> None:
    t = tuning(likelihood="one_step", hidden_prompt=0.5)
    done = t.answers(t.problems())
    prompt, region = t.inputs(done)
    assert (region == t.layout.mask).all() and region.shape == done.decoded.answer.shape
    pad = done.prompt == t.layout.codec.pad
    assert (prompt[pad] == t.layout.codec.pad).all()
    share = (prompt[~pad] == t.layout.mask).float().mean()
    assert 0.25 < float(share) < 0.75
    own = t.log_probs(t.model, done, (prompt, region))
    logits = t.model(prompt, region).log_softmax(-1)
    expected = logits.gather(-1, done.decoded.answer[..., None])[..., 0]
    torch.testing.assert_close(own, expected.gather(1, t.order(done.decoded)))
    assert (t.segments(done.decoded) == 0).all()


def test_updates_of_one_step_have_masks_of_their_own_and_stop_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in d1's trainer: a mask of the prompt an update, under which the networks before the round
    are asked too, and no token after the first end."""
    t = tuning(likelihood="one_step", hidden_prompt=0.5, epochs=3)
    asked: list[tuple[bool, bytes]] = []
    own = t.log_probs

    def noted(model: MaskedModel, done: Round, inputs: tuple[Tensor, Tensor]) -> Tensor:
        asked.append((torch.is_grad_enabled(), inputs[0].numpy().tobytes()))
        return own(model, done, inputs)

    monkeypatch.setattr(t, "log_probs", noted)
    t.update()
    before, learned = ([m for grad, m in asked if grad is g] for g in (False, True))
    assert len(set(learned)) == 3 and [m for m in learned for _ in range(2)] == before
    end = t.layout.codec.end
    answer = torch.tensor([[5, 6, end, end, 5], [end] * 5, [5, 5, 5, 5, 5]])
    blank = torch.zeros(answer.shape)
    decoded = Decoded(answer, answer[None], torch.zeros_like(answer), blank)
    expected = [[1.0, 1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0], [1.0] * 5]
    assert t.counted(decoded).tolist() == expected
    assert tuning().counted(decoded).tolist() == [[1.0] * 5] * 3


def test_the_first_update_of_a_round_is_reinforce() -> None:
    """Ratios are 1 and there is no divergence yet: the gradient is that of -A log p, the mean over
    the tokens of a step, over steps and answers, without the deviation in A."""
    t = tuning(epochs=1, learning_rate=1e-9, clip_norm=1e9)
    other = tuning(epochs=1)
    other.load_state_dict(t.state_dict() | {"config": other.state_dict()["config"]})
    t.update()
    found = [p.grad.clone() for p in t.model.parameters() if p.grad is not None]
    done = other.answers(other.problems())
    if float(done.reward.std()) == 0.0:
        pytest.fail("all rewards are the same; another seed is needed")
    group = done.reward.view(-1, 4)
    advantage = (group - group.mean(1, keepdim=True)).flatten()
    total = torch.zeros(())
    for step, count in enumerate(other.counts):
        logits = other.model(done.prompt, done.decoded.states[step]).log_softmax(-1)
        own = logits.gather(-1, done.decoded.answer[..., None])[..., 0]
        mean = (own * (done.decoded.step == step)).sum(1) / count
        total = total - (advantage * mean).mean() / len(other.counts)
    expected = torch.autograd.grad(total, list(other.model.parameters()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_rewards_rise() -> None:
    layout, model = fitted()
    config = MaskedFinetuningConfig(
        decoding=DecodingConfig(ascending=True),
        prompts=16,
        group=6,
        epochs=4,
        learning_rate=1e-3,
        clip_norm=1.0,
    )
    t = MaskedFinetuning(model, layout, config)
    rewards = [float(t.update()["reward/mean"]) for _ in range(24)]
    assert sum(rewards[-6:]) > sum(rewards[:6]) + 0.3
    problems = t.problems()
    assert 0.0 <= solved(t, config.decoding, problems, 0) <= 1.0


@pytest.mark.parametrize("likelihood", ["trajectory", "one_step"])
def test_it_goes_on_where_it_stopped(likelihood: str) -> None:
    t = tuning(likelihood=likelihood, sync=2)
    t.update()
    stopped = copy.deepcopy(t.state_dict())
    other = tuning(seed=9, likelihood=likelihood, sync=2)  # the state says which problems come
    other.load_state_dict(stopped)
    assert other.problems() == t.problems()
    for _ in range(2):
        t.update()
        other.update()
    assert_same(other.state_dict(), t.state_dict())


def test_the_reference_follows_after_its_rounds() -> None:
    t = tuning(sync=2, learning_rate=1e-2)
    t.update()
    assert any(
        not torch.equal(a, b)
        for a, b in zip(t.model.parameters(), t.reference.parameters(), strict=True)
    )
    t.update()
    assert_same(t.model.state_dict(), t.reference.state_dict())


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"temperature is 0"):
        MaskedFinetuningConfig(decoding=DecodingConfig(temperature=0.0))
    with pytest.raises(ConfigError, match="group is 1"):
        MaskedFinetuningConfig(group=1)
    with pytest.raises(ConfigError, match="'cjgrpo'"):
        tuning(recipe="cjgrpo")
    with pytest.raises(ConfigError, match="prompts"):
        tuning().load_state_dict(tuning(prompts=5).state_dict())

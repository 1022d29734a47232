"""Gradients of shares are those of the whole."""

import pytest
import torch

from algorithms.language.policy_gradient import LanguagePolicyGradient
from algorithms.language.sampling.async_collector import weights_of
from algorithms.language.sampling.data_parallel import GradientWorker, gradients
from mbrl.distributed.groups import WorkerGroup
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import learner, lenient


def double(recipe: str) -> LanguagePolicyGradient:
    """A learner in float64 with a round of 15 conversations, none of the old policy's."""
    agent = learner("guessing", recipe, prompts=5, group=3, minibatches=1, rows_at_once=4)
    agent.model.double()
    for anchor in agent.anchors.values():
        anchor.double()
    agent.task = lenient(agent.task)
    agent.collect()
    with torch.no_grad():
        for weight in agent.model.parameters():
            weight.mul_(1.01)
    return agent


def in_one_process(agent: LanguagePolicyGradient, batch) -> dict[str, torch.Tensor]:
    """By one backward pass through all rows, without the agent's own way in parts."""
    tokens, mask = batch.rollouts.tokens, batch.rollouts.data.mask
    logits = agent.model(tokens[:, :-1]) / agent.config.sampling.temperature
    every = logits.log_softmax(-1)
    log_prob = every.gather(-1, tokens[:, 1:, None])[..., 0] * mask
    entropy = -(every.exp() * every).sum(-1) * mask
    agent.model.zero_grad()
    agent.loss_of(batch, (log_prob, entropy))[0].backward()
    return {n: p.grad for n, p in agent.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recipe", ["grpo", "gspo", "cispo"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_gradients_are_those_of_one_process(recipe: str, size: int) -> None:
    agent = double(recipe)
    batch = agent.next_batch()
    group = WorkerGroup(GradientWorker, (agent.config, "float64"), size=size)
    group.call("load", weights_of(agent))
    total, metrics = gradients(agent, batch, group)
    expected = in_one_process(agent, batch)
    assert total.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    assert largest > 1e-3 and metrics
    for name, value in expected.items():
        assert torch.allclose(total[name], value, rtol=0, atol=1e-6 * largest), name


def test_recipes_with_another_model_for_updates_are_refused() -> None:
    agent = learner("guessing", "grpo")
    batch = double("grpo").next_batch()
    with pytest.raises(ConfigError, match="learns from a teacher"):
        gradients(agent, batch._replace(targets={"teacher": torch.zeros(1)}), None)  # type: ignore[arg-type]


@pytest.mark.long
def test_gradients_of_two_ray_workers() -> None:
    ray = pytest.importorskip("ray")
    agent = double("grpo")
    batch = agent.next_batch()
    totals = []
    for backend in ("inline", "ray"):
        group = WorkerGroup(GradientWorker, (agent.config, "float64"), size=2, backend=backend)
        group.call("load", weights_of(agent))
        totals.append(gradients(agent, batch, group)[0])
        group.close()
    ray.shutdown()
    for name, value in totals[0].items():
        assert torch.allclose(totals[1][name], value, rtol=0, atol=1e-12)

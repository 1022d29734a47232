"""NEUBAY against the authors' code: twni2016/neubay at 5604bad, `sac_q_loss`, `sac_pi_loss` and
`sac_alpha_loss` with their gradients (online_rl/ac_losses.py),
`EnsembleContModel.forward_same_data` (offline_world/modules.py), in float64, with the exact GELU.

A tape of nine positions with episodes from the first and the fifth; the eighth ends its task.
Inputs normal(80, 9, 7), actions tanh of normal(81, ...), rewards normal(82, 9), noise of policy
and target normal(83, 2, 9, 2). Encoders of width 8 with two layers of three states, heads 8-8,
four critics of which 3 and 1 count; discount 0.9, kappa 0.3, temperature 0.3. Leaf i of a network
of theirs, in the order of `leaves_of`, is normal(seed + i, ...): in LayerNorms 1 + 0.2 of it and
0.2 of it, weights over sqrt(in), the rest times 0.3; logarithms as in `filled`. Critic 100, its
target 200, policy 300, ensemble 400.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.learners.recurrent_actor_critic import step_weights
from mbrl.networks import EnsembleMLP
from mbrl.networks.recurrent import LRULayer, MemoryEncoder, NormedLayer
from mbrl.sequences import Tape
from tests.algorithms.beside.inputs import SPEC, array, batch, digest, learner_of, normal
from tests.world_models.beside.members import MEMBERS
from world_models import EnsembleConfig, EnsembleDynamics

POSITIONS = 9


class Leaf(NamedTuple):
    """A parameter as theirs has it: `to` makes our layout of theirs, `back` theirs of ours."""

    kind: str
    parameter: Tensor
    back: Callable[[Tensor], Tensor] = lambda t: t
    to: Callable[[Tensor], Tensor] = lambda t: t


def transposed(parameter: Tensor) -> Leaf:
    return Leaf("weight", parameter, lambda t: t.mT, lambda t: t.mT)


def flat(kind: str, parameter: Tensor) -> Leaf:
    """[E, 1, D] of ours, [E, D] of theirs."""
    return Leaf(kind, parameter, lambda t: t[:, 0], lambda t: t[:, None])


def of_block(layer: NormedLayer) -> list[Leaf]:
    return [
        Leaf("weight", layer.linear.weight),
        Leaf("bias", layer.linear.bias),
        Leaf("scale", layer.norm.weight),
        Leaf("shift", layer.norm.bias),
    ]


def of_layer(layer: LRULayer) -> list[Leaf]:
    leaves = [Leaf("theta", layer.theta), Leaf("nu", layer.nu), Leaf("gamma", layer.scale)]
    matrices = (layer.into_real, layer.into_imag, layer.out_real, layer.out_imag)
    leaves += [*map(transposed, matrices), Leaf("bias", layer.skip)]
    for linear in (layer.value, layer.gate):
        leaves += [Leaf("weight", linear.weight), Leaf("bias", linear.bias)]
    return [*leaves, Leaf("scale", layer.norm.weight), Leaf("shift", layer.norm.bias)]


def of_heads(heads: EnsembleMLP) -> Iterator[Leaf]:
    for index, (weight, bias) in enumerate(zip(heads.weights, heads.biases, strict=True)):
        yield transposed(weight)
        yield flat("bias", bias)
        if index < len(heads.scales):
            yield flat("scale", heads.scales[index])
            yield flat("shift", heads.shifts[index])


def leaves_of(encoder: MemoryEncoder, head: nn.Module) -> list[Leaf]:
    leaves = of_block(encoder.embed)
    for layer in encoder.layers:
        assert isinstance(layer, LRULayer)
        leaves += of_layer(layer)
    if isinstance(head, EnsembleMLP):
        return [*leaves, *of_heads(head)]
    assert isinstance(head, nn.Sequential)
    for part in head:
        if isinstance(part, NormedLayer):
            leaves += of_block(part)
        else:
            assert isinstance(part, nn.Linear)
            leaves += [Leaf("weight", part.weight), Leaf("bias", part.bias)]
    return leaves


def filled(kind: str, x: np.ndarray) -> np.ndarray:
    """What a leaf of this kind has, of the draws `x`."""
    result: np.ndarray
    if kind == "nu":
        result = np.log(-np.log(1 / (1 + np.exp(-x))))
    elif kind == "gamma":
        result = -0.3 * np.abs(x)
    elif kind == "weight":
        result = x / np.sqrt(x.shape[-1])
    else:
        result = x * {"theta": 0.5, "scale": 0.2, "shift": 0.2}.get(kind, 0.3)
    return result + 1 if kind == "scale" else result


@torch.no_grad()
def fill(leaves: list[Leaf], seed: int) -> None:
    for index, leaf in enumerate(leaves):
        draws = normal(seed + index, *leaf.back(leaf.parameter).shape)
        leaf.parameter.copy_(leaf.to(torch.as_tensor(filled(leaf.kind, draws))))


def gradient(leaves: list[Leaf], optimiser: torch.optim.Optimizer) -> float:
    moments = [leaf.back(10 * optimiser.state[leaf.parameter]["exp_avg"]) for leaf in leaves]
    return digest([array(part) for part in moments])


def learner() -> tuple[Any, dict[str, list[Leaf]]]:
    made: Any = learner_of(
        "neubay",
        learner={
            "memory": {"width": 8, "states": 3}, "hidden": [8, 8], "critics": 4, "gamma": 0.9,
            "real_weight": 0.3, "alpha": 0.3, "clip": 1e9,
        },
        rollouts={"termination": "never"},
        model={"members": 1, "elites": 1, "hidden": [8]},
    )  # fmt: skip
    leaves = {
        "critic": leaves_of(made.critic.encoder, made.critic.heads),
        "target": leaves_of(made.target.encoder, made.target.heads),
        "policy": leaves_of(made.policy.encoder, made.policy.head),
    }
    for seed, part in zip((100, 200, 300), leaves.values(), strict=True):
        fill(part, seed)
    made.log_alpha.data = torch.tensor(0.3, dtype=torch.float64).log()
    return made, leaves


def tape() -> Tape:
    place = torch.arange(POSITIONS)
    first = (place == 0) | (place == 4)
    alive = 0.9 * (place != 7).double()
    # A position has a step unless another episode begins after it or the tape ends.
    mask = (place != 3) & (place != 8)
    values = [normal(80, POSITIONS, 7), np.tanh(normal(81, POSITIONS, 2)), normal(82, POSITIONS)]
    x, action, reward = map(torch.as_tensor, values)
    real = torch.isin(place, torch.tensor([0, 1, 4, 5, 6]))
    noise = torch.as_tensor(normal(83, 2, POSITIONS, 2))
    return Tape(x, first, action, reward, alive, real, mask, noise, torch.tensor([3, 1]))


def test_critics() -> None:
    made, leaves = learner()
    rows = tape()
    weights = step_weights(rows.mask, rows.real, 0.3).double()
    features = made.critic.encoder(rows.x, rows.first)
    metrics = made.update_critic(rows, weights, features, made.value_target(rows))
    got = [metrics["critic/loss"].item(), gradient(leaves["critic"], made.optimisers["critic"])]
    assert got == pytest.approx([0.4476725957, 0.8447619495], rel=1e-6)


def test_policy_and_temperature() -> None:
    made, leaves = learner()
    rows = tape()
    for group in made.optimisers["alpha"].param_groups:
        group["lr"] = 0.0  # theirs takes the policy's gradient at the temperature before its step
    weights = step_weights(rows.mask, rows.real, 0.3).double()
    features = made.critic.encoder(rows.x, rows.first).detach()
    metrics = made.update_policy(rows, weights, features)
    got = [metrics["actor/loss"].item(), gradient(leaves["policy"], made.optimisers["policy"])]
    assert got == pytest.approx([-0.3271312602, -0.553533442], rel=1e-6)
    # Their loss is of alpha, ours of log alpha: the gradients differ by the factor alpha.
    moment = made.optimisers["alpha"].state[made.log_alpha]["exp_avg"]
    assert 10 * 0.3 * moment.item() == pytest.approx(0.9868230087, rel=1e-6)


def test_steps_are_those_of_the_tape() -> None:
    """Their encoder on a tape is compared above; one position after the other gives the same."""
    made, _ = learner()
    rows = tape()
    whole = made.policy.encoder(rows.x, rows.first)
    state = torch.zeros(1, made.policy.encoder.state_size, dtype=torch.float64)
    for t in range(POSITIONS):
        state = torch.zeros_like(state) if rows.first[t] else state
        features, state = made.policy.encoder.step(rows.x[t : t + 1], state)
        assert torch.allclose(features[0], whole[t], rtol=1e-10)


def test_disagreement_that_stops_rollouts() -> None:
    config = EnsembleConfig(
        members=MEMBERS, elites=MEMBERS, hidden=(8, 8, 8, 8), activation="leaky_relu",
        layer_norm=True, input_clip=None, weight_decay=(0.0,),
    )  # fmt: skip
    made, rows = EnsembleDynamics(SPEC, config), batch()
    made.network.double()
    leaves = list(of_heads(made.network.mlp))
    fill(leaves[:-2], 400)
    means = [made.network.mlp.weights[-1][..., :5], made.network.mlp.biases[-1][..., :5]]
    fill([transposed(means[0].data), flat("bias", means[1].data)], 400 + len(leaves) - 2)
    mean, _ = made.network(torch.cat([rows.obs, rows.action], 1))
    mean = torch.cat([mean[..., :-1] + rows.obs, mean[..., -1:]], -1)
    level = made.disagreement(rows.obs, rows.action, "epistemic_mean")
    got = [digest([array(level)]), digest([array(mean)])]
    assert got == pytest.approx([-0.297938988, 2.681528994], rel=1e-8)

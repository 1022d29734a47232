"""A2PR against the authors' code: ltlhuuu/A2PR at f92a2a4, `A2PR.train` (A2PR.py) with layers of
width 8 put into its networks and `policy_freq` 1, a whole update in float64.

Policy of seed 1 and its target 10; critics 2 and 3, their targets 4 and 5; value 18; encoder 11
(mean and log-deviation are the halves of its last layer), decoder 12. Alpha 1.3, regularisation
0.4, VAE's weight 0.8, tau 0.1, rates 1e-3 and, of the VAE, 2e-3. Noise normal(7, 5, ...), the
target's times 3.
"""

import pytest
import torch

from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    batch,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    weights_of,
)


def test_update() -> None:
    made = learner_of(
        "a2pr", hidden=[8, 8, 8], critic_hidden=[8, 8, 8, 8], vae_hidden=[8, 8], gamma=0.9, tau=0.1,
        alpha=1.3, regularisation=0.4, vae_weight=0.8, through_proposal=True, policy_every=1,
        learning_rate=1e-3, vae_learning_rate=2e-3,
    )  # fmt: skip
    put(made.policy.net, layers(1, 4, 8, 8, 8, 2))
    put(made.policy_target.net, layers(10, 4, 8, 8, 8, 2))
    sizes = (6, 8, 8, 8, 8, 1)
    put(made.critic, layers(2, *sizes), layers(3, *sizes))
    put(made.critic_target, layers(4, *sizes), layers(5, *sizes))
    put(made.value, layers(18, 4, 8, 8, 8, 8, 1))
    put(made.vae.encoder, layers(11, 6, 8, 8, 8))
    put(made.vae.decoder, layers(12, 8, 8, 8, 2))
    noise = torch.as_tensor(normal(7, 5, ROWS, ACTIONS))
    noise[0] *= 3
    metrics = made.update(batch(noise=noise))
    losses = [metrics[name].item() for name in ("critic/loss", "actor/bc", "actor/loss")]
    assert losses == pytest.approx([2.274948705, 0.1022601582, 1.402260158], rel=1e-6)
    optimisers = made.optimisers
    gradients = [
        gradients_of(made.critic, optimisers["critic"], 2),
        gradients_of(made.value, optimisers["value"]),
        gradients_of(made.vae.encoder, optimisers["vae"]),
        gradients_of(made.vae.decoder, optimisers["vae"]),
        gradients_of(made.policy.net, optimisers["policy"]),
    ]
    expected = [0.6672063087, -2.086907997, 0.005855653526, -0.1928198912, 0.3856375542]
    assert gradients == pytest.approx(expected, rel=1e-6)
    targets = [weights_of(made.critic_target, 2), weights_of(made.policy_target.net)]
    assert targets == pytest.approx([0.4829796416, -2.54457686], rel=1e-6)

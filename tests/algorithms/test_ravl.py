"""The RAVL learner (that of EDAC) beside one written separately and slowly: one critic after the
other, one row's gradient after the other, plain Adam by hand. Same losses, same parameters."""

import math

import numpy as np
import torch

from algorithms import edac
from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from mbrl.buffer import Batch
from mbrl.types import Spec

S, A, B, N, ETA, GAMMA, TAU, RATE = 3, 2, 7, 4, 1.5, 0.97, 0.01, 3e-3


class Adam:
    """Adam as published, for a list of tensors."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters, self.t = parameters, 0
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]

    def step(self, gradients: tuple[torch.Tensor, ...]) -> None:
        self.t += 1
        for p, g, m, v in zip(self.parameters, gradients, self.m, self.v, strict=True):
            m.copy_(0.9 * m + 0.1 * g)
            v.copy_(0.999 * v + 0.001 * g * g)
            size = RATE * (m / (1 - 0.9**self.t))
            p.data -= size / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8)


def network(x: torch.Tensor, layers: list[torch.Tensor]) -> torch.Tensor:
    """One row through weights and biases in turn, ReLU between."""
    for i in range(0, len(layers), 2):
        x = x @ layers[i] + layers[i + 1]
        if i + 2 < len(layers):
            x = torch.where(x > 0, x, torch.zeros_like(x))
    return x


class SlowLearner:
    """Temperature, actor, critics with minimum and diversity, targets: a row and a critic at a
    time, in double precision."""

    def __init__(self, fast: SoftActorCritic) -> None:
        linear = [m for m in fast.actor.net.layers if isinstance(m, torch.nn.Linear)]
        self.actor = [
            t.detach().double().clone().requires_grad_()
            for layer in linear
            for t in (layer.weight.T, layer.bias)
        ]
        self.critics = [
            [
                t.detach().double().clone().requires_grad_()
                for w, b in zip(fast.critic.weights, fast.critic.biases, strict=True)
                for t in (w[n], b[n, 0])
            ]
            for n in range(N)
        ]
        self.targets = [[t.detach().clone() for t in critic] for critic in self.critics]
        self.log_alpha = fast.log_alpha.detach().double().clone().requires_grad_()
        self.optimisers = {
            "alpha": Adam([self.log_alpha]),
            "actor": Adam(self.actor),
            "critic": Adam([t for critic in self.critics for t in critic]),
        }

    def sample(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = network(obs, self.actor)
        mean, log_std = out[:A], out[A:].clamp(-5, 2)
        pre, log_prob = mean + log_std.exp() * noise, torch.zeros((), dtype=torch.double)
        for j in range(A):
            density = -0.5 * noise[j] ** 2 - log_std[j] - 0.5 * math.log(2 * math.pi)
            log_prob = log_prob + density - torch.log(1 - torch.tanh(pre[j]) ** 2)
        return torch.tanh(pre), log_prob

    def value(self, layers: list[torch.Tensor], obs: torch.Tensor, act: torch.Tensor):
        return network(torch.cat([obs, act]), layers)[0]

    def update(self, batch: Batch) -> dict[str, float]:
        rows = [tuple(t[i].double() for t in batch[:5]) for i in range(B)]
        noise = batch.noise.double()
        pairs = [self.sample(row[0], noise[0, i]) for i, row in enumerate(rows)]
        log_probs = torch.stack([p.detach() for _, p in pairs])
        loss = (-self.log_alpha * (log_probs - A)).mean()
        self.optimisers["alpha"].step(torch.autograd.grad(loss, [self.log_alpha]))
        alpha = self.log_alpha.detach().exp()

        actor_loss = torch.zeros((), dtype=torch.double)
        for row, (action, log_prob) in zip(rows, pairs, strict=True):
            q = [self.value(c, row[0], action) for c in self.critics]
            actor_loss = actor_loss + (alpha * log_prob - torch.stack(q).min()) / B
        self.optimisers["actor"].step(torch.autograd.grad(actor_loss, self.actor))

        fit = torch.zeros((), dtype=torch.double)
        diversity = torch.zeros((), dtype=torch.double)
        for i, (obs, action, reward, next_obs, discount) in enumerate(rows):
            with torch.no_grad():
                chosen, log_prob = self.sample(next_obs, noise[1, i])
                q = min(self.value(t, next_obs, chosen) for t in self.targets)
                y = reward + discount * (q - alpha * log_prob)
            directions = []
            for critic in self.critics:
                point = action.clone().requires_grad_()
                q = self.value(critic, obs, point)
                fit = fit + (q - y) ** 2 / B
                (g,) = torch.autograd.grad(q, point, create_graph=True)
                directions.append(g / (g.norm() + 1e-10))
            for a in range(N):
                for b in range(N):
                    if a != b:
                        diversity = diversity + directions[a] @ directions[b] / (N - 1) / B
        critic_parameters = [t for critic in self.critics for t in critic]
        gradients = torch.autograd.grad(fit + ETA * diversity, critic_parameters)
        self.optimisers["critic"].step(gradients)
        for critic, target in zip(self.critics, self.targets, strict=True):
            for new, old in zip(critic, target, strict=True):
                old.copy_((1 - TAU) * old + TAU * new.detach())
        return {
            "critic/loss": float(fit.detach()),
            "critic/diversity": float(diversity.detach()),
            "actor/loss": float(actor_loss.detach()),
            "actor/alpha": float(alpha),
        }


def test_the_learner_is_the_slow_one() -> None:
    spec = Spec("t", obs_dim=S, action_dim=A, action_low=(-1.0,) * A, action_high=(1.0,) * A)
    config = LearnerConfig(
        critics=N, hidden=(8, 8), eta=ETA, gamma=GAMMA, tau=TAU, batch_size=B,
        actor_lr=RATE, critic_lr=RATE, alpha_lr=RATE,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    fast = SoftActorCritic(
        spec, config, torch.device("cpu"), generator, critic_loss=edac.critic_loss
    )
    slow = SlowLearner(fast)
    for _ in range(5):
        draw = torch.randn(B, 2 * S + 1, generator=generator)
        action = 2 * torch.rand(B, A, generator=generator) - 1
        ended = torch.rand(B, generator=generator) < 0.3
        batch = Batch(draw[:, :S], action, draw[:, S], draw[:, S + 1 :], GAMMA * (~ended).float())
        batch = fast.draw(batch, generator)
        found, expected = fast.update(batch), slow.update(batch)
        for name, value in expected.items():
            np.testing.assert_allclose(float(found[name]), value, rtol=2e-4, atol=2e-5)
    for n in range(N):
        flat = [t for w, b in zip(fast.target.weights, fast.target.biases, strict=True)
                for t in (w[n], b[n, 0])]  # fmt: skip
        for new, old in zip(flat, slow.targets[n], strict=True):
            np.testing.assert_allclose(new.detach().numpy(), old.numpy(), atol=2e-4)

"""Diffusion tree sampling: a tree over denoising states whose nodes learn what reward lies below
them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from mbrl.config import Count, CountOrZero, Fraction, NonNegative, Positive, Rate, Settings
from mbrl.errors import ConfigError
from world_models.samplers.base import Before, Denoiser, at, check_levels, normal
from world_models.samplers.feynman_kac import Reward, rewarded
from world_models.samplers.one_step import stochastic_step


@dataclass
class Node:
    """A state at a level, and what is known of the rewards below it."""

    x: Tensor | None  # [...]; None: the root, above the first level
    denoised: Tensor | None = None  # [...], once it was asked for
    children: list["Node"] = field(default_factory=list)
    visits: int = 0
    value: float = 0.0  # soft: log mean exp(tilt value) over the children, over tilt


@dataclass(frozen=True)
class DiffusionTree(Settings):
    """Samples of p(x) exp(tilt r(x)), up to a constant (Diffusion Tree Sampling, arXiv 2506.20701).

    `iterations` times a path is walked from the root down: a node with fewer than
    `widening` visits^`power` children gets a new one by a DDIM step with `eta`, else a child is
    chosen with probability proportional to exp(tilt value) (`search=False`), or the one of highest
    value plus an upper confidence bound (`search=True`, which maximises instead of sampling). The
    reward of the clean end is backed up softly: V = log mean exp(tilt V(child)) / tilt. Then every
    sample is a walk by the same probabilities without new nodes; a search instead gives the clean
    ends of highest reward, best first (repeated where there are fewer).

    Exact for the tilted distribution as iterations grow, and slowly with many steps: a node whose
    first leaves were poor is hardly visited again and stays undervalued, so that small trees tilt
    too little. The samples of one call share a tree; `x` gives only shape and count. Raises
    `ConfigError` where no path ends in a reward above minus infinity.
    """

    reward: Reward  # of clean samples [B, ...], [B]; only its values are used
    tilt: Positive = 1.0  # lambda
    iterations: Count = 200  # paths that the tree is grown by
    widening: Positive = 2.0  # C of the number of children
    power: Fraction = 0.7  # alpha of it
    eta: Rate = 1.0  # share of fresh noise in a step, above 0
    search: bool = False  # look for the highest reward
    exploration: NonNegative = 1.0  # weight of the confidence bound (search alone)
    budget: CountOrZero = 0  # calls of the denoiser after which no path is begun; 0: no limit

    def evaluations(self, steps: int) -> int:
        """At most: every path makes new nodes at all levels."""
        most = self.iterations * steps
        return min(most, self.budget + steps - 1) if self.budget > 0 else most

    @torch.no_grad()
    def __call__(
        self,
        denoise: Denoiser,
        x: Tensor,
        sigmas: Sequence[float],
        generator: torch.Generator,
        *,
        before: Before | None = None,
    ) -> Tensor:
        if before is not None:
            raise ConfigError("a diffusion tree takes its guidance from the reward alone")
        check_levels(sigmas)
        root, calls = Node(None), 0

        def counted(x: Tensor, sigma: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return denoise(x, sigma)

        for _ in range(self.iterations):
            if 0 < self.budget <= calls:
                break
            self._grow(root, counted, x, sigmas, generator)
        if not math.isfinite(root.value):
            raise ConfigError(
                f"the reward is {root.value:g} for {'all' if root.value < 0 else 'some'} of the "
                f"clean ends of {self.iterations} paths; give more iterations, or a finite reward"
            )
        if self.search:
            allowed = [leaf for leaf in _leaves(root) if leaf.value > -math.inf]
            ends = sorted(allowed, key=lambda leaf: -leaf.value)[: len(x)]
            best = torch.stack([leaf.x for leaf in ends if leaf.x is not None])
            return best[torch.arange(len(x), device=best.device) % len(best)]
        samples = []
        for _ in range(len(x)):
            node = root
            while node.children:
                node = self._drawn(node, generator)
            assert node.x is not None
            samples.append(node.x)
        return torch.stack(samples)

    def _grow(
        self,
        root: Node,
        denoise: Denoiser,
        x: Tensor,
        sigmas: Sequence[float],
        generator: torch.Generator,
    ) -> None:
        """One path from the root to a clean sample, and its reward added to all nodes above."""
        path = [root]
        for depth in range(len(sigmas)):
            node = path[-1]
            node.visits += 1
            # The step to 0 has no noise, so that all its outcomes are the same.
            most = 1.0 if sigmas[depth] == 0 else self.widening * node.visits**self.power
            if len(node.children) < most:
                node.children.append(self._child(node, denoise, x, sigmas, depth, generator))
                path.append(node.children[-1])
            elif self.search:
                path.append(self._promising(node))
            else:
                path.append(self._drawn(node, generator))
        leaf = path[-1]
        assert leaf.x is not None
        if leaf.visits == 0:
            leaf.value = float(rewarded(self.reward, leaf.x[None])[0])
        leaf.visits += 1
        for node in reversed(path[:-1]):
            node.value = self._backed_up(node)

    def _child(
        self,
        node: Node,
        denoise: Denoiser,
        x: Tensor,
        sigmas: Sequence[float],
        depth: int,
        generator: torch.Generator,
    ) -> Node:
        if node.x is None:
            return Node(sigmas[0] * normal(x[:1], generator)[0])
        now, then = list(pairwise(sigmas))[depth - 1]
        state = node.x[None]
        if node.denoised is None:
            node.denoised = denoise(state, at(state, now))[0]
        return Node(stochastic_step(state, node.denoised[None], now, then, self.eta, generator)[0])

    def _values(self, node: Node) -> Tensor:
        return torch.tensor([child.value for child in node.children], dtype=torch.double)

    def _backed_up(self, node: Node) -> float:
        scaled = self.tilt * self._values(node)
        mean = torch.logsumexp(scaled, 0) - torch.tensor(float(len(scaled))).log()
        return float(mean) / self.tilt

    def _drawn(self, node: Node, generator: torch.Generator) -> Node:
        values = self._values(node)
        known = values if bool((values > -math.inf).any()) else torch.zeros_like(values)
        share = torch.softmax(self.tilt * known, 0)
        uniform = torch.rand((), generator=generator, dtype=torch.double, device=generator.device)
        index = int(torch.searchsorted(share.cumsum(0), uniform.cpu()))
        return node.children[min(index, len(share) - 1)]

    def _promising(self, node: Node) -> Node:
        visits = torch.tensor([max(1, c.visits) for c in node.children], dtype=torch.double)
        total = torch.tensor(float(max(2, node.visits)), dtype=torch.double)
        bound = self._values(node) + self.exploration * (total.log() / visits).sqrt()
        return node.children[int(bound.argmax())]


def _leaves(root: Node) -> list[Node]:
    """All clean ends: every path is walked down to one."""
    ends, left = [], [root]
    while left:
        node = left.pop()
        left += reversed(node.children)
        if not node.children:
            ends.append(node)
    return ends

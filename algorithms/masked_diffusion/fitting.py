"""The likelihood of masked diffusion: its bound, its loss, and the fit to demonstrations ("Large
Language Diffusion Models", arXiv 2502.09992; "Simple and Effective Masked Diffusion Language
Models", arXiv 2406.07524)."""

import random
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from algorithms.language.tasks.base import Problem
from algorithms.masked_diffusion.model import Layout, MaskedModel
from mbrl.config import Count, check
from mbrl.native.adam import Adam

Predict = Callable[[Tensor, Tensor], Tensor]  # prompt [B, P], region [B, L] to logits [B, L, V]


def masked_at_random(
    answer: Tensor, mask: int, count: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """`answer` [B, L] with `count` [B] of its places masked, every set of places alike likely, and
    which they are [B, L]."""
    order = torch.rand(answer.shape, generator=generator, device=answer.device).argsort(1)
    hidden = order.argsort(1) < count[:, None]
    return torch.where(hidden, mask, answer), hidden


def bound(
    predict: Predict,
    prompt: Tensor,
    answer: Tensor,
    mask: int,
    generator: torch.Generator,
    samples: int = 1,
) -> Tensor:
    """An estimate [B] of a lower bound of log p(answer | prompt): L / l times the log-probabilities
    of l masked places, l uniform in 1..L, the mean over `samples` draws. Its mean is that over all
    orders of filling in one place after the other of the log-probability along the order (LLaDA,
    eq. 6, whose variance is lower than that of the integral over masked shares, eq. 3)."""
    check({"samples": samples}, {"samples": Count})
    rows, length = answer.shape
    total = torch.zeros(rows, device=answer.device)
    for _ in range(samples):
        count = torch.randint(1, length + 1, (rows,), generator=generator, device=answer.device)
        region, hidden = masked_at_random(answer, mask, count, generator)
        each = token_log_probs(predict(prompt, region), answer)
        total = total + (each * hidden).sum(1) * (length / count)
    return total / samples


def token_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log p [B, L] of `tokens` [B, L] under `logits` [B, L, V]."""
    flat = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    return -flat.view(tokens.shape)


def fit(
    model: MaskedModel,
    layout: Layout,
    updates: int,
    *,
    levels: tuple[int, ...] = (),
    rows: int = 64,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> Tensor:
    """Maximise the bound on demonstrations of problems that are not held out, of the task's
    `levels` (none: those it trains on): `updates` steps of Adam on `rows` each. The mean loss of a
    token over the last hundredth of the updates."""
    check({"updates": updates, "rows": rows}, {"updates": Count, "rows": Count})
    optimiser = Adam(model.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(seed + 3)
    losses = []
    for update in range(updates):
        problems, texts = demonstrations(layout, levels, rows, f"shown {seed} {update}")
        prompt, answer = layout.prompts(problems), layout.answers(texts)
        loss = -bound(model, prompt, answer, layout.mask, generator).mean() / layout.answer
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses[-max(1, updates // 100) :]).mean()


def demonstrations(
    layout: Layout, levels: tuple[int, ...], count: int, series: str
) -> tuple[list[Problem], list[str]]:
    """`count` problems to train on, drawn by the name `series`, and a right answer to each."""
    rng = random.Random(series)
    task = layout.task
    problems = [
        task.problem(rng.choice(levels or task.trained), rng, held_out=False) for _ in range(count)
    ]
    return problems, [task.demonstration(p, [], rng) for p in problems]

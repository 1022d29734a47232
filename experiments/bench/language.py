"""The workloads of `bench` that sample and train a small language model: the same architecture as
Llama of the transformers library, which is the peer, with as many rows and tokens."""

from pathlib import Path

import torch
from torch.nn import functional as F

from algorithms.language.learner import log_probs_and_entropy_at
from algorithms.language.models.passes import passes, together
from algorithms.language.models.transformer import Transformer, TransformerConfig
from algorithms.language.sampling.tokens import Sampling, sample_turn
from experiments.bench.peer_programs import Step

SIZE, ROWS, PROMPT, ANSWER = 71, 128, 16, 32  # tokens known, rows, tokens read and said


def sizes(quick: bool) -> tuple[TransformerConfig, int, int]:
    """The model, rows, and tokens of an answer."""
    if quick:
        return TransformerConfig(width=16, layers=1, heads=2, hidden=16), 4, 3
    return TransformerConfig(), ROWS, ANSWER


def sample(quick: bool, folder: Path) -> tuple[Step, int]:
    """Prompts read, and answers drawn token by token at temperature 1."""
    config, rows, said = sizes(quick)
    model = Transformer(SIZE, config, torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(0)
    prompt = torch.randint(SIZE, (rows, PROMPT), generator=g)
    real, limits = torch.ones_like(prompt, dtype=torch.bool), torch.full((rows,), said)

    def step() -> None:
        with torch.no_grad():
            cache = model.cache(rows, PROMPT + said)
            logits = model.extend(prompt, real, cache)
        uniform = torch.rand(rows, said, dtype=torch.float64, generator=g)
        # No token has the number SIZE, so that every answer has its full length.
        sample_turn(model, cache, logits, Sampling(), uniform, limits, end=SIZE, pad=0)

    return step, rows * said


def train(quick: bool, folder: Path) -> tuple[Step, int]:
    """Forward, backward and Adam on the mean log-prob of all tokens."""
    config, rows, said = sizes(quick)
    model = Transformer(SIZE, config, torch.Generator().manual_seed(0))
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(SIZE, (rows, PROMPT + said + 1), generator=g)

    def step() -> None:
        optimiser.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimiser.step()

    return step, rows * (PROMPT + said)


def update(quick: bool, folder: Path) -> tuple[Step, int]:
    """As an update of a policy gradient: answers of all lengths up to the longest, and the loss on
    their tokens alone. These are counted."""
    config, rows, said = sizes(quick)
    model = Transformer(SIZE, config, torch.Generator().manual_seed(0))
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(SIZE, (rows, PROMPT + said), generator=g)
    steps = torch.arange(PROMPT + said - 1) - (PROMPT - 1)
    lengths = 1 + torch.arange(rows)[:, None] % said
    mask = (steps >= 0) & (steps < lengths)

    def step() -> None:
        optimiser.zero_grad()
        todo = passes(mask, rows)
        outputs = [log_probs_and_entropy_at(model, tokens, mask, 1.0, None, one) for one in todo]
        log_prob = together(outputs, todo, mask.shape[1])[..., 0]
        (-log_prob.sum() / mask.sum()).backward()
        optimiser.step()

    return step, int(mask.sum())

"""What prompts look like, in numbers."""

import torch
from torch import Tensor

from algorithms.language.models.vocabulary import ALPHABET

BIGRAMS = 64  # places that pairs of characters share


def prompt_features(prompt: str) -> Tensor:
    """[len(ALPHABET) + BIGRAMS]: the characters and the pairs of them."""
    ids = [i for i in (ALPHABET.find(c) for c in prompt) if i >= 0]
    single = torch.zeros(len(ALPHABET))
    double = torch.zeros(BIGRAMS)
    for i in ids:
        single[i] += 1
    for a, b in zip(ids, ids[1:], strict=False):
        double[(31 * a + b) % BIGRAMS] += 1
    return torch.cat([torch.nn.functional.normalize(v, dim=0) for v in (single, double)])

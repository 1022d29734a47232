"""Small masked diffusion models of text: they fill in a region of fixed length, a few places at a
time, and are trained on demonstrations and by reward."""

from algorithms.masked_diffusion.decoding import Decoded, DecodingConfig, decode
from algorithms.masked_diffusion.finetuning import (
    MaskedFinetuning,
    MaskedFinetuningConfig,
    solved,
)
from algorithms.masked_diffusion.fitting import bound, demonstrations, fit
from algorithms.masked_diffusion.model import Layout, MaskedModel, MaskedModelConfig

__all__ = [
    "Decoded",
    "DecodingConfig",
    "Layout",
    "MaskedFinetuning",
    "MaskedFinetuningConfig",
    "MaskedModel",
    "MaskedModelConfig",
    "bound",
    "decode",
    "demonstrations",
    "fit",
    "solved",
]

"""Causal language models of the transformers library, from a folder on this machine."""

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from algorithms.language.models.vocabulary import Codec
from mbrl.errors import ConfigError, install_command

# Nothing is downloaded, and no program in the folder is run.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


class HuggingFaceCache:
    """A cache of the transformers library with holes."""

    def __init__(self, past: Any, real: Tensor, count: Tensor) -> None:
        self.past, self.real, self.count = past, real, count

    @property
    def used(self) -> int:
        return self.real.shape[1]

    def select(self, rows: Tensor) -> Self:
        past = type(self.past)()
        for i, layer in enumerate(self.past.layers):
            past.update(layer.keys[rows], layer.values[rows], i)
        return type(self)(past, self.real[rows], self.count[rows])

    def put_back(self, part: Self, rows: Tensor) -> None:
        new = part.used - self.used
        for mine, theirs in zip(self.past.layers, part.past.layers, strict=True):
            for name in ("keys", "values"):
                have, got = getattr(mine, name), getattr(theirs, name)[:, :, self.used :]
                added = have.new_zeros(*have.shape[:2], new, have.shape[3])
                added[rows] = got
                setattr(mine, name, torch.cat([have, added], 2))
        real = self.real.new_zeros(len(self.real), new)
        real[rows] = part.real[:, self.used :]
        self.real = torch.cat([self.real, real], 1)
        self.count[rows] = part.count


class HuggingFace(nn.Module):
    """A causal language model of the transformers library behind the interface of ours. Its dropout
    stays off. It is saved with numbers of type `own`."""

    def __init__(self, inner: Any, own: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner, self.own = inner.eval(), own
        self.size: int = inner.config.vocab_size
        own_forward = getattr(inner, "get_base_model", lambda: inner)().forward  # not peft's
        self.keeps_columns = "logits_to_keep" in inspect.signature(own_forward).parameters

    def train(self, mode: bool = True) -> Self:
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=tokens, use_cache=False).logits
        return logits

    def logits_at(self, tokens: Tensor, here: Tensor) -> Tensor:
        """Logits [n, V] after the tokens that `here` [B, T] marks. A model that can makes them of
        those columns alone, with whatever it does to them after its head."""
        if not self.keeps_columns:
            result: Tensor = self(tokens)[here]
            return result
        columns = here.any(0).nonzero().flatten()
        output = self.inner(input_ids=tokens, use_cache=False, logits_to_keep=columns)
        logits: Tensor = output.logits[here[:, columns]]
        return logits

    def features(self, tokens: Tensor) -> Tensor:
        output = self.inner(input_ids=tokens, use_cache=False, output_hidden_states=True)
        last: Tensor = output.hidden_states[-1]
        return last

    def read(self, features: Tensor) -> Tensor:
        logits: Tensor = self.inner.get_output_embeddings()(features)
        return logits

    def embeddings(self) -> Tensor:
        """What stands for every token before the first layer, [V, width]."""
        weight: Tensor = self.inner.get_input_embeddings().weight
        return weight

    def cache(self, rows: int, capacity: int) -> HuggingFaceCache:
        from transformers import DynamicCache

        window = getattr(self.inner.config, "sliding_window", None)
        if window is not None and capacity > window:
            raise ConfigError(
                f"the model sees {window} tokens back and conversations may have {capacity}; take "
                "shorter turns, or a model with full attention"
            )
        device = next(self.parameters()).device
        real = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        count = torch.zeros(rows, dtype=torch.int64, device=device)
        return HuggingFaceCache(DynamicCache(), real, count)

    def extend(self, tokens: Tensor, real: Tensor, cache: HuggingFaceCache) -> Tensor:
        start, stop = cache.used, cache.used + tokens.shape[1]
        positions = (cache.count[:, None] + real.cumsum(1) - 1).clamp_min(0)
        cache.real = torch.cat([cache.real, real], 1)
        cache.count = cache.count + real.sum(1)
        at = torch.arange(stop, device=tokens.device)
        new = at[start:, None]
        seen = (cache.real[:, None, None] & (at <= new)) | (at == new)  # a hole sees itself
        kind = next(self.parameters()).dtype
        mask = torch.zeros(seen.shape, dtype=kind, device=tokens.device)
        mask = mask.masked_fill(~seen, torch.finfo(kind).min)
        output = self.inner(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache.past,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


class TokenizerCodec:
    """A tokenizer of the transformers library. With a chat template a prompt and an observation are
    the user's messages; without one they are lines of their own."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                "the tokenizer has no end-of-sequence token, so no turn ends; set its eos_token"
            )
        self.tokenizer, self.size = tokenizer, size
        self.end: int = tokenizer.eos_token_id
        self.pad: int = self.end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._between: tuple[str, str] | None = None

    def opening(self, prompt: str) -> list[int]:
        if self.tokenizer.chat_template is None:
            ids: list[int] = self.tokenizer.encode(prompt + "\n")
            return [t for i, t in enumerate(ids) if i == 0 or t != self.end]
        text = self._chat([("user", prompt)], True)
        return self._encode(text)

    def between(self, observation: str) -> list[int]:
        if self.tokenizer.chat_template is None:
            return self._encode(f"\n{observation}\n")
        said = [("user", "a"), ("assistant", "b")]
        before = self._chat(said, False)
        whole = self._chat([*said, ("user", observation)], True)
        if not whole.startswith(before):
            raise ConfigError(
                "the tokenizer's chat template changes what was said before when more is said; "
                "conversations of several turns need one that appends"
            )
        return self._encode(whole[len(before) :])

    def turn(self, text: str) -> list[int]:
        return [*self._encode(text), self.end]

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text.strip()

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _chat(self, said: Sequence[tuple[str, str]], ask: bool) -> str:
        messages = [{"role": role, "content": text} for role, text in said]
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=ask
        )
        return text


def load(
    path: str, lora: int, device: torch.device, generator: torch.Generator
) -> tuple[HuggingFace, Codec]:
    """The model and tokenizer in the folder `path`, with low-rank updates of rank `lora` (0: none)
    to be trained in place of the weights; in single precision, whatever the files have. Nothing is
    downloaded. Raises `ConfigError` where the folder or the optional packages are missing."""
    if not (Path(path) / "config.json").is_file():
        raise ConfigError(
            f"{path} holds no model (there is no config.json); give a folder that "
            "`save_pretrained` wrote"
        )
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise ConfigError(
            "models from a folder need the transformers library: " + install_command("language")
        ) from None
    try:
        inner = AutoModelForCausalLM.from_pretrained(path, **LOCAL)
        tokenizer = AutoTokenizer.from_pretrained(path, **LOCAL)
    except (ValueError, OSError) as problem:
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise ConfigError(f"{path} holds no model that can be loaded: {reason}") from problem
    own = inner.dtype  # of the file: half precision is too coarse for small steps on weights
    inner = inner.float()
    if lora:
        inner = with_lora(inner, lora, generator)
    model = HuggingFace(inner, own).to(device)
    return model, TokenizerCodec(tokenizer, model.size)


def with_lora(inner: Any, rank: int, generator: torch.Generator) -> Any:
    """Low-rank updates on every linear layer ("LoRA: Low-Rank Adaptation of Large Language Models",
    arXiv 2106.09685)."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError("lora needs the peft library: " + install_command("language")) from None
    seed = int(torch.randint(2**31, (1,), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # peft draws from the global generator
        settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        return get_peft_model(inner, settings)


def save(model: HuggingFace, codec: TokenizerCodec, folder: str | Path) -> None:
    """Write a folder that transformers loads, in the precision of the one it came from; low-rank
    updates are merged into the weights."""
    inner = model.inner
    if hasattr(inner, "merge_and_unload"):
        inner = copy.deepcopy(inner).merge_and_unload()
    if inner.dtype != model.own:
        inner = copy.deepcopy(inner).to(model.own)
    inner.save_pretrained(folder)
    codec.tokenizer.save_pretrained(folder)

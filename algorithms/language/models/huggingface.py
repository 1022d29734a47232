"""Causal language models of the transformers library, from a folder on this machine."""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from algorithms.language.models.vocabulary import Codec
from mbrl.errors import ConfigError, install_command

# Nothing is downloaded, and no program in the folder is run.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}

Opening = Literal["chat", "line", "bare"]
SAID = "said-before"  # what no chat template writes by itself


@dataclass(frozen=True)
class Lora:
    """Low-rank updates of `rank`, whose product counts `alpha / rank` times, on the linear layers
    whose names end with one of `targets` (none: on all but the head)."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()


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
        self.window: int | None = getattr(inner.config, "sliding_window", None)
        self.longest: int | None = getattr(inner.config, "max_position_embeddings", None)
        parameters = inspect.signature(own_forward).parameters
        self.keeps_columns = "logits_to_keep" in parameters
        # Renamed in transformers 5.24; the old name ends with 5.40.
        self.past_name = "cache" if "cache" in parameters else "past_key_values"

    def train(self, mode: bool = True) -> Self:
        return self

    def require_length(self, count: int) -> None:
        """Raise `ConfigError` for more tokens than the model has positions for."""
        if self.longest is not None and count > self.longest:
            raise ConfigError(
                f"the model reads at most {self.longest} tokens and a conversation has {count}; "
                "take shorter prompts or turns (turn_tokens), or a model that reads more"
            )

    def forward(self, tokens: Tensor) -> Tensor:
        self.require_length(tokens.shape[1])
        logits: Tensor = self.inner(input_ids=tokens, use_cache=False).logits
        return logits

    def logits_at(self, tokens: Tensor, here: Tensor) -> Tensor:
        """Logits [n, V] after the tokens that `here` [B, T] marks. A model that can makes them of
        those columns alone, with whatever it does to them after its head; and what rows have in
        common before the first of them (the prompt of a group) goes through it once."""
        if not self.keeps_columns:
            result: Tensor = self(tokens)[here]
            return result
        columns = here.any(0).nonzero().flatten()
        start = int(columns[0]) if len(columns) else 0
        prompts, owner = tokens[:, :start].unique(dim=0, return_inverse=True)
        if self.window is None and start and 2 * len(prompts) <= len(tokens):
            cache = self.cache(len(prompts), tokens.shape[1])
            self._read(prompts, torch.ones_like(prompts, dtype=torch.bool), cache, 1)
            rest = tokens[:, start:]
            real, at = torch.ones_like(rest, dtype=torch.bool), columns - start
            logits = self._read(rest, real, cache.select(owner), at)
        else:
            self.require_length(tokens.shape[1])
            output = self.inner(input_ids=tokens, use_cache=False, logits_to_keep=columns)
            logits = output.logits
        return logits[here[:, columns]]

    def features(self, tokens: Tensor) -> Tensor:
        self.require_length(tokens.shape[1])
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

        if self.window is not None and capacity > self.window:
            raise ConfigError(
                f"the model sees {self.window} tokens back and conversations may have {capacity}; "
                "take shorter turns, or a model with full attention"
            )
        device = next(self.parameters()).device
        real = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        count = torch.zeros(rows, dtype=torch.int64, device=device)
        return HuggingFaceCache(DynamicCache(), real, count)

    def extend(self, tokens: Tensor, real: Tensor, cache: HuggingFaceCache) -> Tensor:
        return self._read(tokens, real, cache, 1 if self.keeps_columns else None)[:, -1]

    def _read(
        self, tokens: Tensor, real: Tensor, cache: HuggingFaceCache, keep: Tensor | int | None
    ) -> Tensor:
        """Append `tokens` [B, N] to the cache, of which those that are not `real` are holes; logits
        after the columns `keep`, or the last so many, or all (None)."""
        start, stop = cache.used, cache.used + tokens.shape[1]
        positions = (cache.count[:, None] + real.cumsum(1) - 1).clamp_min(0)
        self.require_length(int(positions.max()) + 1 if positions.numel() else 0)
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
            use_cache=True,
            **{self.past_name: cache.past},
            **({} if keep is None else {"logits_to_keep": keep}),
        )
        logits: Tensor = output.logits
        return logits


class TokenizerCodec:
    """A tokenizer of the transformers library. Prompts and observations are the user's messages
    (`opening` "chat"), lines of their own ("line"), or stand as they are, so that the model goes on
    with them ("bare"); None: "chat" with a chat template, else "line". A turn ends with the token
    of the text `end`; None: with the tokenizer's end of sequence. Raises `ConfigError` where there
    is no such token or no template, and for tokens beyond the model's `size`."""

    def __init__(
        self, tokenizer: Any, size: int, *, opening: Opening | None = None, end: str | None = None
    ) -> None:
        template = tokenizer.chat_template is not None
        if opening == "chat" and not template:
            raise ConfigError(
                "opening is 'chat' and the tokenizer has no chat template; take 'line' or 'bare'"
            )
        self.tokenizer, self.size = tokenizer, size
        self.form: Opening = opening or ("chat" if template else "line")
        self.end = self._end(end)
        self.pad: int = self.end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        token, last = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
        if last >= size:
            raise ConfigError(
                f"the tokenizer has the token {token!r} with number {last} and the model rows for "
                f"{size} tokens, 0 to {size - 1}; take the tokenizer of that model, or enlarge it "
                "by resize_token_embeddings and save it again"
            )

    def _end(self, text: str | None) -> int:
        if text is not None:
            ids = self._encode(text)
            if len(ids) != 1:
                raise ConfigError(
                    f"end is {text!r}, of which the tokenizer makes {len(ids)} tokens; give the "
                    "text of one token"
                )
            return ids[0]
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(
                "the tokenizer has no end-of-sequence token, so no turn ends; set its eos_token, "
                "or `end` to the text of a token"
            )
        end: int = self.tokenizer.eos_token_id
        return end

    def opening(self, prompt: str) -> list[int]:
        if self.form == "chat":
            return self._encode(self._chat([("user", prompt)], True))
        text = prompt + "\n" if self.form == "line" else prompt
        ids: list[int] = self.tokenizer.encode(text)
        # Only what the tokenizer puts at an end does not belong there; a prompt's lines do, also
        # where a turn ends with the token of a new line.
        own = self._encode(text)[-1:] == ids[-1:]
        return ids if own or ids[-1] != self.tokenizer.eos_token_id else ids[:-1]

    def between(self, observation: str) -> list[int]:
        if self.form != "chat":
            return self._encode(observation if self.form == "bare" else f"\n{observation}\n")
        said = [("user", "a"), ("assistant", SAID)]
        before = self._chat(said, False)
        whole = self._chat([*said, ("user", observation)], True)
        if not whole.startswith(before):
            raise ConfigError(
                "the tokenizer's chat template changes what was said before when more is said; "
                "conversations of several turns need one that appends"
            )
        # A turn has its end token already; what the template writes after it is still to come.
        _, end, after = before.rpartition(SAID)[2].rpartition(self.tokenizer.decode([self.end]))
        return self._encode((after if end else "") + whole[len(before) :])

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
    path: str,
    lora: Lora | None,
    device: torch.device,
    generator: torch.Generator,
    *,
    opening: Opening | None = None,
    end: str | None = None,
) -> tuple[HuggingFace, Codec]:
    """The model and tokenizer in the folder `path`, with low-rank updates (None: without) to be
    trained in place of the weights; in single precision, whatever the files have. `opening` and
    `end`: see `TokenizerCodec`. Nothing is downloaded. Raises `ConfigError` where the folder or the
    optional packages are missing."""
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
    if lora is not None:
        inner = with_lora(inner, lora, generator)
    model = HuggingFace(inner, own).to(device)
    return model, TokenizerCodec(tokenizer, model.size, opening=opening, end=end)


def with_lora(inner: Any, lora: Lora, generator: torch.Generator) -> Any:
    """Low-rank updates on linear layers ("LoRA: Low-Rank Adaptation of Large Language Models",
    arXiv 2106.09685). Raises `ConfigError` where the model lacks a layer that is a target."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError("lora needs the peft library: " + install_command("language")) from None
    layers = {
        n.split(".")[-1]
        for n, m in inner.named_modules()
        if type(m).__name__ in ("Linear", "Conv1D")
    }
    if unknown := sorted(set(lora.targets) - layers):
        raise ConfigError(
            f"the model has no linear layer {', '.join(unknown)}; its names are "
            f"{', '.join(sorted(layers))}"
        )
    seed = int(torch.randint(2**31, (1,), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # peft draws from the global generator
        settings = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=list(lora.targets) or "all-linear",
        )
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

"""Models from a folder: built here, sampled exactly, trained, resumed, saved and loaded again."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.optional import needed

transformers = needed("transformers")
needed("peft")

from algorithms.language import tasks  # noqa: E402
from algorithms.language.imitation import Imitation, ImitationConfig  # noqa: E402
from algorithms.language.learner import ModelConfig  # noqa: E402
from algorithms.language.models import huggingface  # noqa: E402
from algorithms.language.models.transformer import TransformerConfig  # noqa: E402
from algorithms.language.models.vocabulary import ALPHABET  # noqa: E402
from algorithms.language.policy_gradient import (  # noqa: E402
    LanguageConfig,
    LanguagePolicyGradient,
)
from algorithms.language.sampling.rollouts import roll_out  # noqa: E402
from algorithms.language.sampling.tokens import Sampling, log_probs_and_entropy  # noqa: E402
from mbrl.errors import ConfigError  # noqa: E402
from mbrl.training import train  # noqa: E402
from tests.algorithms.language.small import Digits  # noqa: E402

CHAT = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.fixture(autouse=True)
def _digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", Digits())


def tokenizer(chat: bool) -> Any:
    """Characters as tokens, in the library's own format."""
    import tokenizers

    words = ["$$", *dict.fromkeys([*ALPHABET, *"<>ua"])]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="$$")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="$$")
    if chat:
        found.chat_template = CHAT
    return found


@pytest.fixture(params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny random model as `save_pretrained` writes it."""
    words = tokenizer(False)
    torch.manual_seed(0)
    shared = {"vocab_size": len(words), "bos_token_id": None, "eos_token_id": 0}
    if request.param == "llama":
        config = transformers.LlamaConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.3,
            **shared,
        )
    else:
        config = transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=2, n_positions=200, initializer_range=0.3, **shared
        )
    path = tmp_path / "model"
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    words.save_pretrained(path)
    return path


def learner(folder: Path, lora: int = 0, **changes: Any) -> LanguagePolicyGradient:
    config = LanguageConfig(
        task="digits",
        model=ModelConfig(path=str(folder), lora=lora),
        prompts=3,
        group=3,
        minibatches=1,
        recipe="nsr",  # learns from wrong answers too: a random model has no others
        **changes,
    )
    return LanguagePolicyGradient(config=config)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 0.7)], ids=str)
def test_sampled_log_probs_are_those_of_whole_passes(folder: Path, sampling: Sampling) -> None:
    model, codec = huggingface.load(str(folder), None, torch.device("cpu"), torch.Generator())
    problems = [Digits().problem(9, random.Random(i)) for i in range(5)]
    g = torch.Generator().manual_seed(0)
    found = roll_out(model, codec, Digits(), problems, sampling, g, group=3)
    logits = model(found.tokens)[:, :-1]
    log_prob, _, _ = log_probs_and_entropy(
        logits, found.tokens[:, 1:], sampling.temperature, found.kept
    )
    mask = found.data.mask
    torch.testing.assert_close(
        log_prob[mask], found.data.log_probs["behaviour"][mask], rtol=0, atol=1e-4
    )
    torch.testing.assert_close(model.read(model.features(found.tokens)), model(found.tokens))
    for keeps in (True, False):
        assert model.keeps_columns
        model.keeps_columns = keeps
        chosen = model.logits_at(found.tokens[:, :-1], mask)
        torch.testing.assert_close(chosen, logits[mask], rtol=0, atol=1e-5)
        model.keeps_columns = True


def test_a_prompt_that_rows_share_is_read_once_with_the_same_logits_and_gradients(
    folder: Path,
) -> None:
    model, codec = huggingface.load(str(folder), None, torch.device("cpu"), torch.Generator())
    problems = [Digits().problem(9, random.Random(i)) for i in range(2)]
    g = torch.Generator().manual_seed(0)
    rollouts = roll_out(model, codec, Digits(), problems, Sampling(), g, group=4)
    tokens, here = rollouts.tokens[:, :-1], rollouts.data.mask
    lengths: list[int] = []
    handle = model.inner.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: lengths.append(inputs[0].numel())
    )
    model.logits_at(tokens, here)
    shared = sum(lengths)
    handle.remove()
    assert shared < tokens.numel()
    model.double()  # norms of Llama stay in single precision
    once, whole = model.logits_at(tokens, here), model(tokens)[here]
    torch.testing.assert_close(once, whole, rtol=0, atol=1e-10)
    weights = torch.rand(whole.shape, generator=g)
    parameters = [p for p in model.parameters() if p.requires_grad]
    pairs = zip(
        torch.autograd.grad((weights * once).sum(), parameters),
        torch.autograd.grad((weights * whole).sum(), parameters),
        strict=True,
    )
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)


def test_what_is_longer_than_the_model_reads_is_told(folder: Path) -> None:
    agent = learner(folder)
    agent.model.longest = 8
    tokens = torch.randint(1, 9, (2, 9))
    for read in (agent.model, agent.model.features):
        read(tokens[:, :8])
        with pytest.raises(ConfigError, match="reads at most 8 tokens and a conversation has 9"):
            read(tokens)
    cache = agent.model.cache(2, 9)
    with pytest.raises(ConfigError, match="reads at most 8 tokens"):
        agent.model.extend(tokens, torch.ones_like(tokens, dtype=torch.bool), cache)


def test_lora_takes_its_scale_and_the_layers_that_are_named(folder: Path) -> None:
    kind = "llama" if "llama" in (folder / "config.json").read_text() else "gpt2"
    target, other = {"llama": ("v_proj", "q_proj"), "gpt2": ("c_attn", "c_fc")}[kind]
    config = ModelConfig(str(folder), lora=2, lora_alpha=6.0, lora_targets=(target,))
    agent = LanguagePolicyGradient(config=LanguageConfig(task="digits", recipe="nsr", model=config))
    names = {n for n, p in agent.model.named_parameters() if p.requires_grad}
    assert names and all(f"{target}.lora_" in name for name in names)
    layer = next(m for m in agent.model.modules() if hasattr(m, "lora_A"))
    assert layer.scaling == {"default": 3.0}
    assert not any(other in name for name in names)
    wrong = dataclasses.replace(config, lora_targets=("v_projection",))
    with pytest.raises(ConfigError, match="no linear layer v_projection; its names are"):
        LanguagePolicyGradient(config=LanguageConfig(task="digits", recipe="nsr", model=wrong))


def test_logits_of_some_steps_are_capped_as_all_are() -> None:
    """Gemma 2 bends its logits after the head."""
    config = transformers.Gemma2Config(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=3.0,
        final_logit_softcapping=2.0,
    )
    model = huggingface.HuggingFace(transformers.AutoModelForCausalLM.from_config(config))
    tokens = torch.randint(20, (3, 7), generator=torch.Generator().manual_seed(0))
    here = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.4
    whole = model(tokens)
    assert 1.5 < float(whole.abs().max()) <= 2.0  # the cap is felt
    torch.testing.assert_close(model.logits_at(tokens, here), whole[here], rtol=0, atol=1e-5)


def test_half_precision_is_trained_in_single_and_saved_in_its_own(
    folder: Path, tmp_path: Path
) -> None:
    """Steps of 1e-5 are below half of bfloat16's spacing at nearly all weights."""
    half = tmp_path / "half"
    inner = transformers.AutoModelForCausalLM.from_pretrained(folder).to(torch.bfloat16)
    inner.save_pretrained(half)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(half)
    agent = learner(half, learning_rate=1e-5)
    before = [p.detach().clone() for p in agent.model.parameters()]
    assert {p.dtype for p in before} == {torch.float32}
    train(agent, 2, collector=agent)
    after = zip(before, agent.model.parameters(), strict=True)
    moved = [float((a != b).float().mean()) for a, b in after if a.ndim == 2]
    assert max(moved) > 0.9
    huggingface.save(agent.model, agent.codec, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert again.dtype == torch.bfloat16
    assert next(agent.model.parameters()).dtype == torch.float32  # it goes on as it was


@pytest.mark.parametrize("lora", [0, 2])
def test_a_folder_trains_resumes_exactly_and_is_saved(
    folder: Path, lora: int, tmp_path: Path
) -> None:
    whole, broken = learner(folder, lora), learner(folder, lora)
    first = [p.detach().clone() for p in whole.model.parameters()]
    train(whole, 3, collector=whole)
    train(broken, 1, collector=broken)
    broken.save(tmp_path / "agent.pt")
    again = LanguagePolicyGradient.load(tmp_path / "agent.pt")
    train(again, 3, collector=again)
    pairs = zip(whole.model.named_parameters(), again.model.parameters(), first, strict=True)
    moved = set()
    for (name, x), y, start in pairs:
        assert torch.equal(x, y)
        if not torch.equal(x, start):
            moved.add("lora" if "lora" in name else "weight")
    assert moved == ({"lora"} if lora else {"weight"})
    out = tmp_path / "out"
    huggingface.save(again.model, again.codec, out)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
    words = transformers.AutoTokenizer.from_pretrained(out)
    tokens = torch.tensor([words.encode("0-9")])
    torch.testing.assert_close(loaded(tokens).logits, again.model(tokens), rtol=1e-4, atol=1e-5)


def test_imitation_shows_a_model_from_a_folder(folder: Path) -> None:
    config = ImitationConfig(
        task="digits", model=ModelConfig(path=str(folder)), learning_rate=1e-2, rows=16
    )
    agent = Imitation(config=config)
    first = float(agent.update(agent.next_batch())["imitation/loss"])
    train(agent, 30)
    assert float(agent.update(agent.next_batch())["imitation/loss"]) < first / 2


def test_conversations_follow_the_chat_template() -> None:
    words = tokenizer(True)
    codec = huggingface.TokenizerCodec(words, len(words))
    text = words.decode(codec.opening("0-9"))
    assert text == "<u>0-9$$<a>"
    assert words.decode(codec.between("no")) == "<u>no$$<a>"
    assert words.decode(codec.turn("7")) == "7$$" and codec.decode(codec.turn("7")) == "7"
    plain = huggingface.TokenizerCodec(tokenizer(False), len(words))
    assert words.decode(plain.opening("0-9")) == "0-9\n"
    assert words.decode(plain.between("no")) == "\nno\n"


def test_several_turns_are_written_as_the_template_writes_them() -> None:
    """What stands after the end of a turn (a new line in ChatML) stands there."""
    words = tokenizer(True)
    words.chat_template = CHAT.replace("{{ eos_token }}", "{{ eos_token }}=")
    codec = huggingface.TokenizerCodec(words, len(words))
    parts = [codec.opening("0-9"), codec.turn("7"), codec.between("no"), codec.turn("8")]
    said = [("user", "0-9"), ("assistant", "7"), ("user", "no"), ("assistant", "8")]
    messages = [{"role": role, "content": text} for role, text in said]
    whole = words.apply_chat_template(messages, tokenize=False)
    assert words.decode([token for part in parts for token in part]) + "=" == whole


def test_a_prompt_may_stand_bare_and_a_turn_end_with_any_token() -> None:
    words = tokenizer(True)
    codec = huggingface.TokenizerCodec(words, len(words), opening="bare", end=";")
    assert words.decode(codec.opening("0-9")) == "0-9"
    assert words.decode(codec.between("no")) == "no"
    assert words.decode(codec.turn("7")) == "7;"
    with pytest.raises(ConfigError, match="end is '=;', of which the tokenizer makes 2 tokens"):
        huggingface.TokenizerCodec(words, len(words), end="=;")
    with pytest.raises(ConfigError, match="no chat template"):
        huggingface.TokenizerCodec(tokenizer(False), len(words), opening="chat")


@pytest.mark.parametrize("end", [None, "\n", "$$"])
def test_a_prompt_keeps_its_lines_whatever_ends_a_turn(end: str | None) -> None:
    """Without the token that the tokenizer puts behind all texts, its end of sequence."""
    from tokenizers import processors

    words = tokenizer(False)
    codec = huggingface.TokenizerCodec(words, len(words), opening="line", end=end)
    assert words.decode(codec.opening("1+1=2\n0-9")) == "1+1=2\n0-9\n"
    both = processors.BertProcessing(("$$", 0), ("$$", 0))
    words.backend_tokenizer.post_processor = both
    assert words.decode(words.encode("0-9")) == "$$0-9$$"
    assert words.decode(codec.opening("1+1=2\n0-9")) == "$$1+1=2\n0-9\n"


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no model \(there is no config\.json\)"):
        learner(tmp_path)
    with pytest.raises(ConfigError, match="a rank is for models from a `path`"):
        ModelConfig(lora=4)
    with pytest.raises(ConfigError, match="lora is 0; give lora a rank"):
        ModelConfig(str(tmp_path), lora_alpha=4.0)
    with pytest.raises(ConfigError, match="these are for models from a `path`"):
        ModelConfig(opening="bare")
    with pytest.raises(ConfigError, match="has its own sizes"):
        ModelConfig(str(tmp_path), transformer=TransformerConfig(width=32))
    words = tokenizer(False)
    huggingface.TokenizerCodec(words, 68)
    with pytest.raises(ConfigError, match="number 67 and the model rows for 67 tokens, 0 to 66"):
        huggingface.TokenizerCodec(words, 67)
    words.eos_token = None
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        huggingface.TokenizerCodec(words, 5)


def test_a_program_in_a_folder_is_never_run(tmp_path: Path) -> None:
    """A config that maps its model to a module beside it is refused, the module not imported."""
    (tmp_path / "config.json").write_text(
        '{"model_type": "own", "auto_map": {"AutoConfig": "own.Own",'
        ' "AutoModelForCausalLM": "own.Own"}}'
    )
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(ConfigError, match="holds no model that can be loaded"):
        huggingface.load(str(tmp_path), None, torch.device("cpu"), torch.Generator())
    assert not (tmp_path / "ran").exists()

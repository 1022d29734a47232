"""Further likelihoods, against one forward pass for every token and against loops."""

import math
from pathlib import Path

import pytest
import torch

from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.measures.likelihoods import (
    Degraded,
    EntropyControl,
    EntropyHistory,
    Expert,
    GradientNorms,
    PromptConfidence,
)
from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.sampling.tokens import Sampling
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    MODEL,
    at_turns,
    learner,
    log_probs,
    part_of,
    starts,
    whole,
)


def test_confidence_in_the_prompt() -> None:
    agent = learner("addition", "arm_progrpo")
    found = part_of(agent, PromptConfidence).measure(agent.sample_round())
    wanted = []
    for problem in found.problems:
        first, *rest = agent.codec.opening(problem.prompt)
        logs = log_probs(agent.model, [first], rest)
        wanted.append(math.exp(sum(logs) / len(logs)))
    got = whole(found, found.data.signals["prompt_confidence"])
    assert got == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_answers_to_spoiled_prompts(top_p: float) -> None:
    agent = learner("rating", "q_hawkeye", prompts=3, sampling=Sampling(top_p=top_p))
    found = agent.sample_round()
    generator = torch.Generator()
    generator.set_state(agent.generator.get_state())
    part = part_of(agent, Degraded)
    got = part.measure(found).data.log_probs["degraded"]
    agent.generator.set_state(generator.get_state())
    tokens = part.spoiled(found)
    changed, count = 0, 0
    for i, problem in enumerate(found.problems):
        opening = agent.codec.opening(problem.prompt)
        n = len(opening)
        assert tokens[i, 0] == opening[0] and tokens[i, n - 1] == opening[-1]
        assert torch.equal(tokens[i, n:], found.tokens[i, n:])
        assert torch.equal(tokens[i, :n], tokens[i // 3 * 3, :n])  # alike for a prompt's answers
        changed += sum(a != b for a, b in zip(tokens[i, :n].tolist(), opening, strict=True))
        count += n
        start, stop = starts(found, i)[0]
        row = tokens[i].tolist()
        for j in range(start, stop):
            with torch.no_grad():
                logits = agent.model(torch.tensor([row[:j]]))[0, -1].double()
            if found.kept is not None:
                kept = [k for k in found.kept[i, j - 1].tolist() if k >= 0]
                total = torch.logsumexp(logits[kept], 0)
            else:
                total = torch.logsumexp(logits, 0)
            assert float(got[i, j - 1]) == pytest.approx(float(logits[row[j]] - total), abs=1e-4)
    assert 0.15 < changed / count < 0.4


def test_an_expert(tmp_path: Path) -> None:
    taught = Imitation(None, ImitationConfig(task="addition", model=MODEL, rows=8), seed=3)
    for _ in range(3):
        taught.update(taught.next_batch())
    taught.save(tmp_path / "expert.pt")
    agent = learner("addition", "calibrl", expert=str(tmp_path / "expert.pt"))
    found = part_of(agent, Expert).measure(agent.sample_round())
    for i in range(len(found)):
        (start, stop), row = starts(found, i)[0], found.tokens[i].tolist()
        wanted = log_probs(taught.model, row[:start], row[start:stop])
        got = found.data.log_probs["expert"][i, start - 1 : stop - 1].tolist()
        assert got == pytest.approx(wanted, abs=1e-4)
    with pytest.raises(ConfigError, match="give `expert`, the checkpoint"):
        LanguageConfig(recipe="calibrl")


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_norms_of_gradients(top_p: float) -> None:
    sampling = Sampling(temperature=0.7, top_p=top_p)
    agent = learner("guessing", "vcpo", group=2, turn_tokens=2, sampling=sampling)
    found = part_of(agent, GradientNorms).measure(agent.sample_round())
    weights, wanted = list(agent.model.parameters()), []
    for i in range(len(found)):
        total = [torch.zeros_like(weight) for weight in weights]
        for start, stop in starts(found, i):
            for j in range(start, stop):  # the sum of the gradients of single tokens
                logits = agent.model(found.tokens[i : i + 1, :j])[0, -1] / 0.7
                if found.kept is not None:
                    kept = found.kept[i, j - 1]
                    norm = logits[kept[kept >= 0]].logsumexp(0)
                else:
                    norm = logits.logsumexp(0)
                gradients = torch.autograd.grad(logits[found.tokens[i, j]] - norm, weights)
                total = [a + b for a, b in zip(total, gradients, strict=True)]
        wanted.append(sum(float(g.double().square().sum()) for g in total))
    got = whole(found, found.data.signals["gradient_norm_squared"])
    assert got == pytest.approx(wanted, rel=1e-3)


def test_mean_entropies_of_earlier_rounds() -> None:
    agent = learner("guessing", "epo", prompts=3, turn_tokens=3)
    part, past = part_of(agent, EntropyHistory), dict[int, list[float]]()
    for _ in range(3):
        found = agent.sample_round()
        entropies: dict[int, list[float]] = {}
        for row in at_turns(found, found.data.entropy):
            for k, turn in enumerate(row):
                entropies.setdefault(k, []).extend(turn)
        now = {k: sum(values) / len(values) for k, values in entropies.items()}
        found = part.measure(found)
        for row in at_turns(found, found.data.signals["entropy_history"]):
            for k, turn in enumerate(row):
                wanted = sum(past[k]) / len(past[k]) if k in past else now[k]
                assert turn == pytest.approx([wanted] * len(turn), rel=1e-5)
        for k, value in now.items():
            past.setdefault(k, []).append(value)


def test_the_weight_of_the_entropy_bonus_follows_its_target() -> None:
    agent = learner("guessing", "skywork_or1", prompts=3, turn_tokens=3)
    part, weights = part_of(agent, EntropyControl), list[float]()
    for target in (9.0, 9.0, 1e-3, 9.0):  # nats of a token: out of reach, and surely passed
        part.tracker.target = target
        found = part.measure(agent.sample_round())
        (weight,) = found.data.signals["entropy_weight"].unique().tolist()
        weights.append(weight)
    assert weights == pytest.approx([0.0, 1e-4, 0.0, 1e-4])
    found = agent.sample_round()
    assert found.data.entropy is not None and not found.data.mask.all()
    mean = float(found.data.entropy[found.data.mask].mean())  # of what the model said alone
    for factor, after in ((1.001, 3e-4), (0.999, 2e-4)):
        part.tracker.target = factor * mean
        part.measure(found)
        assert part.tracker.weight == pytest.approx(after)
    again = part_of(learner("guessing", "skywork_or1"), EntropyControl)
    again.load_state_dict(part.state_dict())
    assert again.tracker.weight == pytest.approx(2e-4)


def test_one_conversation_about_a_problem_has_nothing_to_be_compared_with() -> None:
    with pytest.raises(ConfigError, match="compares conversations about one problem, and group is"):
        LanguageConfig(task="addition", recipe="grpo", group=1)
    LanguageConfig(task="addition", recipe="rloo", group=1)

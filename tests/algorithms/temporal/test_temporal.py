"""A sequence model, its metacontroller and learning on codes: against closed forms and loops, and
what each part leaves alone."""

import math

import pytest
import torch

from algorithms.temporal import internal_rl
from algorithms.temporal.internal_rl import (
    CodePolicy,
    InternalConfig,
    clipped_loss,
    group_advantage,
    learn_actions,
    learn_codes,
    rollout,
)
from algorithms.temporal.metacontroller import (
    Metacontroller,
    MetacontrollerConfig,
    divergence,
    fit_metacontroller,
    metacontroller_loss,
)
from algorithms.temporal.sequence_model import (
    SequenceConfig,
    SequenceModel,
    imitation_loss,
    pretrain,
    previous_actions,
)

BASE = SequenceConfig(width=16, updates=20, batch_size=8)
SMALL = MetacontrollerConfig(code=3, memory=4, rank=2, updates=5, batch_size=8)
RL = InternalConfig(iterations=3, episodes=16, steps=6)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model() -> SequenceModel:
    return SequenceModel(5, 4, BASE, generator())


def sequences(count: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = generator(1)
    obs = torch.randn(count, 7, 5, generator=g)
    action = torch.randint(4, (count, 7), generator=g)
    ends = torch.randint(3, 8, (count, 1), generator=g)
    return obs, action, torch.arange(7) < ends


class Line:
    """Two right actions in a row are paid; a wrong one ends the episode."""

    def reset(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int64)

    def observe(self, state: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(state.clamp_min(0), 5).float()

    def step(
        self, state: torch.Tensor, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        right = (action == 1) & (state >= 0) & (state < 2)
        state = torch.where(right, state + 1, -1)
        return state, (right & (state == 2)).float(), ~right | (state == 2)


def perturbed(controller: Metacontroller) -> Metacontroller:
    with torch.no_grad():
        for p in controller.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator(4)))
    return controller


def test_the_model_is_causal_and_the_same_a_step_at_a_time() -> None:
    base, (obs, action, _) = model(), sequences()
    previous = previous_actions(action)
    assert previous[:, 0].tolist() == [-1] * 12 and torch.equal(previous[:, 1:], action[:, :-1])
    e, _ = base.stream(obs, previous)
    whole, _ = base.logits(e)
    lower = upper = None
    for t in range(7):
        part, lower = base.stream(obs[:, t : t + 1], previous[:, t : t + 1], lower)
        logits, upper = base.logits(part, upper)
        assert torch.allclose(part[:, 0], e[:, t], atol=1e-5)
        assert torch.allclose(logits[:, 0], whole[:, t], atol=1e-5)
    changed = obs.clone()
    changed[:, 4] += 1
    later, _ = base.logits(base.stream(changed, previous)[0])
    assert torch.equal(later[:, :4], whole[:, :4]) and not torch.allclose(later[:, 4], whole[:, 4])


def test_the_loss_counts_steps_of_the_mask_alone() -> None:
    (_, action, mask), logits = sequences(), torch.randn(12, 7, 4, generator=generator(2))
    terms = [
        -math.log(float(logits[i, t].softmax(0)[action[i, t]]))
        for i in range(12)
        for t in range(7)
        if mask[i, t]
    ]
    assert float(imitation_loss(logits, action, mask)) == pytest.approx(
        sum(terms) / len(terms), rel=1e-5
    )


@pytest.mark.long
def test_pretraining_learns_a_rule() -> None:
    g = generator(3)
    action = torch.randint(4, (64, 6), generator=g)
    obs = torch.nn.functional.one_hot(action, 5).float()  # the action is observed
    base = model()
    config = SequenceConfig(width=16, updates=300, batch_size=32, learning_rate=3e-3)
    loss = pretrain(base, obs, action, torch.ones(64, 6, dtype=torch.bool), config, g)
    assert loss < 0.05


def test_the_divergence_against_torch() -> None:
    mean, log_std = torch.randn(2, 6, 3, generator=generator(5))
    one = torch.distributions.Normal(mean, log_std.exp())
    expected = torch.distributions.kl_divergence(one, torch.distributions.Normal(0.0, 1.0)).sum(-1)
    assert torch.allclose(divergence(mean, log_std), expected, atol=1e-5)


def test_a_new_controller_leaves_the_base_as_it_is() -> None:
    base, controller = model(), Metacontroller(16, SMALL, generator())
    e = base.stream(sequences()[0], previous_actions(sequences()[1]))[0]
    code = torch.randn(12, 7, 3, generator=generator(2))
    assert torch.equal(controller.steer(e, code), e)
    assert not torch.allclose(perturbed(controller).steer(e, code), e)


def test_every_weight_is_drawn_by_the_generator() -> None:
    """Not by PyTorch's global one, which is another in every process that drew before."""
    made = []
    for seed in (0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            parts = (model(), Metacontroller(16, SMALL, generator()))
            parts = (*parts, CodePolicy(16, 3, generator()))
            made.append(torch.cat([p.flatten() for part in parts for p in part.parameters()]))
    assert torch.equal(*made)


def test_steering_against_a_loop() -> None:
    controller = perturbed(Metacontroller(16, SMALL, generator()))
    e, code = torch.randn(4, 16, generator=generator(1)), torch.randn(4, 3, generator=generator(2))
    got = controller.steer(e, code)
    for i in range(4):
        flat = controller.matrices(torch.nn.functional.gelu(controller.hidden(code[i])))
        a, b = flat[:32].view(16, 2), flat[32:].view(16, 2)
        assert torch.allclose(got[i], e[i] + a @ b.T @ e[i], atol=1e-5)


FULL = torch.full((5,), 7)


@pytest.mark.parametrize("gate", ["learned", "always"])
def test_codes_against_a_loop(gate: str) -> None:
    config = MetacontrollerConfig(**{**vars(SMALL), "gate": gate})
    # In double precision: the recurrence passes rounding on from step to step.
    controller = perturbed(Metacontroller(16, config, generator())).double()
    e = torch.randn(5, 7, 16, generator=generator(1)).double()
    noise = torch.randn(5, 7, 3, generator=generator(2)).double()
    got = controller.codes(e, noise, FULL)
    summary, _ = controller.both_ways(e)
    for i in range(5):
        code, memory = torch.zeros(3).to(e), torch.zeros(4).to(e)
        for t in range(7):
            mean, log_std = controller.propose(torch.cat([e[i, t], summary[i, t]])).chunk(2)
            new = mean + log_std.clamp(-5, 2).exp() * noise[i, t]
            seen = torch.cat([e[i, t], memory, code])
            beta = 1.0 if t == 0 or gate == "always" else float(controller.gate.out(seen).sigmoid())
            code = beta * new + (1 - beta) * code
            memory = controller.gate.memory(torch.cat([e[i, t], code])[None], memory[None])[0]
            assert float(got.gate[i, t]) == pytest.approx(beta, abs=1e-10)
            assert torch.allclose(got.code[i, t], code, rtol=0, atol=1e-10)


def test_a_gate_that_stays_shut_keeps_the_first_code() -> None:
    controller = perturbed(Metacontroller(16, SMALL, generator()))
    with torch.no_grad():
        controller.gate.out[-1].bias.fill_(-1e9)
    e = torch.randn(5, 7, 16, generator=generator(1))
    codes = controller.codes(e, torch.randn(5, 7, 3, generator=generator(2)), FULL)
    assert codes.gate.sum(1).tolist() == [1.0] * 5
    assert torch.equal(codes.code, codes.code[:, :1].expand(-1, 7, -1))


def test_the_gate_does_not_see_what_is_to_come_and_the_proposals_do() -> None:
    controller = perturbed(Metacontroller(16, SMALL, generator()))
    e = torch.randn(5, 7, 16, generator=generator(1))
    other = e.clone()
    other[:, 6] += 1
    noise = torch.zeros(5, 7, 3)
    one, two = controller.codes(e, noise, FULL), controller.codes(other, noise, FULL)
    assert not torch.allclose(one.mean[:, 0], two.mean[:, 0])
    memory, code = controller.gate.start(e[:, 0], 3)
    assert torch.equal(
        controller.gate(e[:, 3], memory, code, False),
        controller.gate(other[:, 3], memory, code, False),
    )


def test_the_metacontrollers_loss_and_that_the_base_stays() -> None:
    base, (obs, action, mask) = model(), sequences()
    controller = perturbed(Metacontroller(16, SMALL, generator()))
    noise = torch.randn(12, 7, 3, generator=generator(2))
    loss, codes = metacontroller_loss(base, controller, obs, action, mask, noise)
    e, _ = base.stream(obs, previous_actions(action))
    logits, _ = base.logits(controller.steer(e, codes.code))
    prior = divergence(codes.mean, codes.log_std)[mask].mean()
    expected = imitation_loss(logits, action, mask) + 0.1 * prior
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    before = {k: v.clone() for k, v in base.state_dict().items()}
    fitted = fit_metacontroller(base, obs, action, mask, SMALL, generator())
    assert all(torch.equal(v, before[k]) for k, v in base.state_dict().items())
    begun = Metacontroller(16, SMALL, generator())
    moved = zip(fitted.parameters(), begun.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in moved)


def test_group_advantages_and_the_clipped_loss() -> None:
    assert group_advantage(torch.tensor([1.0, 0.0, 0.0, 1.0])).tolist() == [1.0, -1.0, -1.0, 1.0]
    assert group_advantage(torch.ones(4)).tolist() == [0.0] * 4
    log_prob, before = torch.randn(2, 6, 5, generator=generator(1))
    mask = torch.rand(6, 5, generator=generator(2)) < 0.5
    advantage = torch.randn(6, generator=generator(3))
    terms = []
    for i in range(6):
        for t in range(5):
            if mask[i, t]:
                a, rho = float(advantage[i]), math.exp(float(log_prob[i, t] - before[i, t]))
                terms.append(min(rho * a, min(max(rho, 0.8), 1.2) * a))
    got = float(clipped_loss(log_prob, before, mask, advantage, 0.2))
    assert got == pytest.approx(-sum(terms) / len(terms), rel=1e-5)


@pytest.mark.parametrize("opened", [True, False])
def test_log_probabilities_are_those_of_codes_at_switches(opened: bool) -> None:
    """As many terms as switches; those of a shut gate are the first step's alone."""
    base, policy = model(), CodePolicy(16, 3, generator())
    controller = perturbed(Metacontroller(16, SMALL, generator()))
    with torch.no_grad():
        controller.gate.out[-1].bias.fill_(1e9 if opened else -1e9)
        policy.mean.bias.fill_(0.3)
        policy.log_std.fill_(-0.5)
    seen = rollout(base, Line(), RL, generator(1), controller, policy)
    assert seen.code is not None
    expected = seen.made if opened else seen.made & (torch.arange(6) == 0)
    assert torch.equal(seen.switch, expected)
    if not opened:
        assert torch.equal(seen.code, seen.code[:, :1].expand(-1, 6, -1))
    e, _ = base.stream(seen.obs, previous_actions(seen.action))
    mean = policy(e)[0].detach()
    normal = torch.distributions.Normal(mean, policy.log_std.detach().exp())
    exact = normal.log_prob(seen.code).sum(-1) + 1.5 * math.log(2 * math.pi)
    assert torch.allclose(seen.log_prob[seen.switch], exact[seen.switch], atol=1e-4)


def test_the_loss_has_as_many_terms_as_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    base, controller = model(), perturbed(Metacontroller(16, SMALL, generator()))
    with torch.no_grad():
        controller.gate.out[-1].bias.fill_(-1e9)
    base.requires_grad_(False)
    controller.requires_grad_(False)
    terms: list[int] = []

    def counted(log_prob, before, mask, advantage, clip):  # type: ignore[no-untyped-def]
        terms.append(int(mask.sum()))
        return clipped_loss(log_prob, before, mask, advantage, clip)

    monkeypatch.setattr(internal_rl, "clipped_loss", counted)
    config = InternalConfig(iterations=4, episodes=100, steps=6, epochs=1)
    learn_codes(base, controller, Line(), config, generator(1), lambda r: None)
    assert terms and set(terms) == {100}  # a shut gate: the first step of each episode


def test_rollouts_are_paid_once_and_end() -> None:
    seen = rollout(model(), Line(), InternalConfig(episodes=400, steps=6), generator(1))
    right = seen.action == 1
    assert torch.equal(seen.returns, (right[:, 0] & right[:, 1]).float())
    assert torch.equal(seen.made.sum(1), 1 + right[:, 0].long())
    assert 0 < float(seen.returns.mean()) < 0.3


@pytest.mark.parametrize("value", [0.1, 1 / 3, 777.7, 12345.678])
def test_equal_returns_have_no_advantage_however_their_mean_is_rounded(value: float) -> None:
    for count in (1, 3, 7, 100, 128):
        assert not group_advantage(torch.full((count,), value)).any()


def test_learning_codes_and_learning_actions() -> None:
    """On the line both find what is paid; codes leave base and controller alone. The controller is
    one whose codes can steer: not all that are hardly fitted do."""
    base, (obs, action, mask) = model(), sequences()
    controller = perturbed(fit_metacontroller(base, obs, action, mask, SMALL, generator(2)))
    with torch.no_grad():
        controller.matrices.weight.mul_(4)
    kept = [p.clone() for m in (base, controller) for p in m.parameters()]
    config = InternalConfig(
        iterations=60, episodes=64, steps=3, learning_rate=1e-2, token_rate=1e-2
    )
    shares: list[float] = []
    learn_codes(
        base,
        controller,
        Line(),
        config,
        generator(1),
        lambda r: shares.append(float(r.returns.mean())),
    )
    assert shares[-1] > shares[0] + 0.2
    now = [p for m in (base, controller) for p in m.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(now, kept, strict=True))
    shares.clear()
    learn_actions(
        base, Line(), config, generator(1), lambda r: shares.append(float(r.returns.mean()))
    )
    assert shares[-1] > 0.9


def test_what_stands_behind_a_sequence_has_no_part_in_it() -> None:
    controller = perturbed(Metacontroller(16, SMALL, generator())).double()
    e = torch.randn(5, 7, 16, generator=generator(1)).double()
    noise = torch.zeros(5, 7, 3).to(e)
    lengths = torch.tensor([7, 3, 5, 1, 7])
    whole = controller.codes(e, noise, lengths)
    for i, length in enumerate(lengths.tolist()):
        cut = controller.codes(e[i : i + 1, :length], noise[:1, :length], lengths[i : i + 1])
        for got, wanted in zip(whole, cut, strict=True):
            assert torch.allclose(got[i, :length], wanted[0], rtol=0, atol=1e-10)

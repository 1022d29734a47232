"""The diagnosis of `algorithms.evaluation.diagnosis` for agents with memory: the same measures at
histories."""

import torch
from torch import Tensor

from algorithms.evaluation import diagnosis
from algorithms.learners.recurrent_actor_critic import RecurrentActorCritic
from mbrl.sequences import SequenceBuffer, Tape
from mbrl.training import Metrics
from mbrl.types import Trajectories
from world_models import RolloutConfig, WorldModel, rollout
from world_models.edge_of_reach import outside

POSITIONS = 4000  # of the tape whose ends are looked at: an episode has but one


@torch.no_grad()
def diagnose(
    learner: RecurrentActorCritic,
    model: WorldModel,
    recorded: SequenceBuffer,
    sequences: SequenceBuffer,
    memory: Tensor,
    generator: torch.Generator,
) -> Metrics:
    """Where the episodes that `sequences` holds end, what the critics say there, and mean values at
    histories of the data (`recorded`) against what the policy earns from there in the model, each
    history in one member. `memory` [2] is what values remember of earlier temperatures."""
    metrics = reach(learner, sequences.sample(POSITIONS, generator), generator)
    tape, kept = recorded.histories(diagnosis.STATES, generator)
    q = values(learner, tape, sampled(learner, tape, generator))[:, kept].mean(0).double()
    reward = recorded.rewards()
    rewards = (reward.min(), reward.max())
    imagined = imagine(learner, model, tape, kept, generator)
    earned = soft_return(imagined, rewards, memory[1], learner.config.gamma)
    return metrics | diagnosis.excess_metrics(learner, q, earned, rewards, memory)


def reach(learner: RecurrentActorCritic, tape: Tape, generator: torch.Generator) -> Metrics:
    """`diagnosis.edge_metrics` of a tape: its ends are the last positions of episodes that go on,
    whose values are bootstrapped from and never trained."""
    before = tape.mask.roll(1) & (tape.discount.roll(1) > 0) & ~tape.first
    ends = ~tape.mask & before
    ends[-1] = False  # the tape is cut there
    if not bool(ends.any()):
        return {"reach/outside": torch.zeros((), device=ends.device)}
    q = values(learner, tape, sampled(learner, tape, generator))
    obs = tape.x[:, : learner.spec.obs_dim]
    mask = outside(obs[ends], obs[tape.mask])
    return diagnosis.spread_metrics(mask, q[:, tape.mask], q[:, ends])


def sampled(learner: RecurrentActorCritic, tape: Tape, generator: torch.Generator) -> Tensor:
    """The policy's sampled actions [T, A] in [-1, 1] at every position of a tape."""
    shape = (len(tape.x), learner.spec.action_dim)
    noise = torch.randn(shape, generator=generator, device=tape.x.device)
    return learner.sample(tape, noise)[0]


def values(learner: RecurrentActorCritic, tape: Tape, action: Tensor) -> Tensor:
    """Every head's value [N, T] of `action` [T, A] at every position of a tape."""
    return learner.critic.values(learner.critic.encoder(tape.x, tape.first), action)


def imagine(
    learner: RecurrentActorCritic,
    model: WorldModel,
    tape: Tape,
    rows: Tensor,
    generator: torch.Generator,
) -> Trajectories:
    """Rollouts of the sampled policy from the histories that end at `rows` [B] of a tape."""
    policy, s = learner.policy, learner.spec.obs_dim
    past = policy.encoder.memory(tape.x, tape.first).roll(1, 0) * (~tape.first)[:, None]
    carried = torch.cat([past, tape.x[:, s:]], 1)[rows]
    config = RolloutConfig(horizon=diagnosis.horizon(learner.config.gamma), member="per_rollout")
    return rollout(model, policy, tape.x[rows, :s], config, generator, memory=carried)


def soft_return(
    imagined: Trajectories, rewards: tuple[Tensor, Tensor], bonus: Tensor, gamma: float
) -> Tensor:
    """Discounted return [B] of trajectories with `bonus` at every step but the first, rewards cut
    to the bounds `rewards`; what follows one that has not ended is the mean of its last steps."""
    steps = imagined.mask.shape[1]
    gained = imagined.reward.clamp(*rewards).double()
    gained[:, 1:] += bonus.double()
    gained = gained * imagined.mask
    weight = gamma ** torch.arange(steps, dtype=torch.double, device=gained.device)
    alive = imagined.mask[:, -1] & ~imagined.terminated[:, -1]
    tail = gained[:, -diagnosis.TAIL :].mean(1) * alive
    return (weight * gained).sum(1) + gamma**steps / (1 - gamma) * tail

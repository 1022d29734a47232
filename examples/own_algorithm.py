"""An algorithm of your own: a learner (one loss) on a source that exists (logged rows). It then
fits, acts, saves and exports like every other. CONTRIBUTING.md says how it joins the command line.

Reward-weighted cloning: L = mean w (pi(s) - a)^2, w = exp((r - max r) / temperature), the maximum
over the batch. Steps that paid well are copied, others hardly.

python own_algorithm.py"""

import sys
from dataclasses import dataclass

from algorithms.sources.logged import LoggedRows
from mbrl import data, tasks
from mbrl.agent import Agent
from mbrl.config import Count, Discount, Positive, Settings, Widths
from mbrl.evaluation import evaluate
from mbrl.networks import DeterministicPolicy, adam, descend


@dataclass(frozen=True)
class WeightedCloningConfig(Settings):
    """Every number that is used, with the range that is checked."""

    temperature: Positive = 1.0  # in units of the reward
    hidden: Widths = (64, 64)  # policy widths
    learning_rate: Positive = 1e-3  # Adam
    batch_size: Count = 256  # rows an update
    gamma: Discount = 0.99  # of evaluations from data; the loss does not use it


class WeightedCloning:
    """The learner: a policy, its optimiser, and one update."""

    def __init__(self, spec, config, device, generator):
        self.config = config
        self.policy = DeterministicPolicy(spec, config.hidden, generator=generator).to(device)
        self.modules = {"policy": self.policy}  # what a checkpoint holds
        self.optimisers = {"policy": adam(self.policy.parameters(), config.learning_rate)}

    def draw(self, batch, generator):
        return batch  # random numbers that an update needs would be drawn here

    def update(self, batch, count=0):
        weight = ((batch.reward - batch.reward.max()) / self.config.temperature).exp()
        error = (self.policy.unit(batch.obs) - batch.action).square().mean(1)
        loss = (weight * error).mean()
        descend(self.optimisers["policy"], loss)
        return {"actor/loss": loss.detach(), "actor/weight": weight.mean()}


class RewardWeightedBC(Agent):
    """Cloning of the actions that paid well."""

    version = 1
    config: WeightedCloningConfig

    def build(self, generator):
        c = self.config
        learner = WeightedCloning(self.spec, c, self.device, generator)
        return learner, LoggedRows(self.spec, c.gamma, c.batch_size, self.device)


dataset = data.load("pendulum/medium")
agent = RewardWeightedBC(dataset.spec, seed=0)
agent.fit(dataset, int(sys.argv[1]) if len(sys.argv) > 1 else 1000, callbacks=[])
returns = evaluate(agent, tasks.make("Pendulum-v1"), episodes=20)
print(f"score {dataset.spec.score(returns).mean():.1f}: 0 is random, 100 the expert")
agent.save("weighted.pt")
again, obs = RewardWeightedBC.load("weighted.pt"), dataset.transitions.obs[:5]
assert (again.act(obs)[0] == agent.act(obs)[0]).all()

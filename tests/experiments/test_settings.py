"""Settings that follow the budget of a run."""

from experiments.tables import plan


def test_a_decay_as_long_as_the_budget_follows_it() -> None:
    """Else nothing is learned after the preset's budget; other decays stay as they are."""
    column = plan.Column("iql", "iql")
    for data, budget in (("pendulum/medium", 5000), ("d4rl/hopper-medium-v2", 1_000_000)):
        for steps in (None, budget, 300, 50_000):
            assert plan.config_of(column, data, steps).decay_steps == (steps or budget)
    own = plan.Column("iql", "iql", {"decay_steps": 0})
    assert plan.config_of(own, "pendulum/medium", 50_000).decay_steps == 0

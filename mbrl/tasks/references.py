"""Reference returns (random, expert): the undiscounted returns that score 0 and 100.

"local" figures were measured with this library's dependencies: uniform random actions, and the
expert of `mbrl.tasks.experts` unless stated. A task that is missing here has no score.
"""

# The D4RL pairs are the (min, max) of Fu et al., "D4RL", arXiv:2004.07219, table in its code.
# They are the same for every tier and version of an environment.
REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    # local: random 1000 episodes (standard error 9.1); value iteration, 1000 episodes
    "Pendulum-v1": (-1228.1, -138.8),
    # local: random 1000 episodes; the limit of 500 steps is reached by a linear rule
    "CartPole-v1": (22.5, 500.0),
    # local: random never arrives; pushing along the velocity
    "MountainCar-v0": (-200.0, -120.0),
    # local: random 100 episodes; a = 0.2 sign(v)
    "MountainCarContinuous-v0": (-33.25, 98.6),
    # local: random 100 episodes; torque along the second joint's speed, 100 episodes
    "Acrobot-v1": (-497.1, -84.4),
}

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
    # local: random 100 episodes; torque along the second joint's speed over 100 episodes (1000
    # episodes: -89.4, standard error 1.2)
    "Acrobot-v1": (-497.1, -84.4),
    # local: random 2,000,000 and 10,000 episodes; the best return, which is known
    "Modes-v0": (0.1206, 1.0),
    "Obstacle-v0": (0.0, 1.0),
    # local: 1000 episodes each (standard errors 2.0 and 0.1); energy pumping and a regulator. The
    # best return known here is 450.5.
    "CartPoleSwingUp-v0": (-84.6, 446.1),
    # local: random 1000 episodes; regulators over 100. Version 4 pays the alive bonus on the
    # terminating step too, which every random episode has and no expert episode.
    "InvertedPendulum-v4": (6.02, 1000.0),
    "InvertedPendulum-v5": (5.02, 1000.0),
    "InvertedDoublePendulum-v4": (58.6, 9359.9),
    "InvertedDoublePendulum-v5": (48.6, 9359.9),
    # local: random 1000 and 500 episodes; inverse kinematics over 1000 (standard error 0.05).
    # Version 4 rewards the state before the step.
    "Reacher-v4": (-42.9, -4.08),
    "Reacher-v5": (-42.8, -3.88),
    # local: random 100 episodes (standard deviation 9.3); linear policy found by cross-entropy
    "Swimmer-v4": (0.8, 352.0),
    "Swimmer-v5": (0.8, 352.0),
    # Version 4 has D4RL's pairs, because its files are evaluated there; a uniformly random policy
    # scores 1.1 on Hopper rather than 0. Version 5 has local ones: random 1000 and 100 episodes
    # (standard errors 0.6 and 7), the best linear policy of augmented random search over 100.
    "Hopper-v4": (-20.272305, 3234.3),
    "Hopper-v5": (17.9, 2764.0),
    "HalfCheetah-v4": (-280.178953, 12135.0),
    "HalfCheetah-v5": (-278.7, 3491.0),
    "Walker2d-v4": (1.629008, 4592.3),
    "Walker2d-v5": (1.629008, 4592.3),
    "Ant-v4": (-325.6, 3879.7),
    "Ant-v5": (-325.6, 3879.7),
    # local: random and a pursuit that swerves, 1000 episodes each (standard errors 0.06, 0.13)
    "WindingRoad-v0": (3.6, 92.4),
    # local: random and a rule that aligns before a door, 1000 episodes each
    "DoorChain-v0": (0.04, 4.0),
    # The (min, max) of NeoRL-2 (Gao et al., arXiv 2503.19267), in its code, neorl2/envs/info.py.
    "DMSD-v0": (30.6, 849.51),
    "SafetyHalfCheetah-v0": (-283.0, 2507.0),
    "Simglucose-v0": (9.75, 475.0),
    "Pipeline-v0": (-296.0, 751.0),
    "RandomFrictionHopper-v0": (-3.0, 503.0),
    "RocketRecovery-v0": (-176.0, 208.0),
}

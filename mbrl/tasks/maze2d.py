"""D4RL's Maze2D: a ball pushed through a maze to a fixed goal, as a gymnasium environment.

Written from the facts of D4RL's tasks (Fu et al., https://arxiv.org/abs/2004.07219, d4rl/pointmaze
at github.com/Farama-Foundation/D4RL): sizes, damping, gears, layouts, rewards."""

from typing import Any

import gymnasium
import numpy as np

from mbrl.errors import ConfigError, unknown_name

# Rows of tiles: # wall, G goal, . free. The first index of a tile is x, the second y.
MAZES = {
    "umaze": ("#####", "#G..#", "###.#", "#...#", "#####"),
    "medium": (
        "########", "#..##..#", "#..#...#", "##...###",
        "#..#...#", "#.#..#.#", "#...#.G#", "########",
    ),
    "large": (
        "############", "#....#.....#", "#.##.#.#.#.#", "#......#...#", "#.####.###.#",
        "#..#.#.....#", "##.#.#.#.###", "#..#...#.G.#", "############",
    ),
}  # fmt: skip
STEPS = {"umaze": 300, "medium": 600, "large": 800}  # D4RL's limits, version 1
REACHED = 0.5  # distance from the goal that the sparse reward pays, in tiles
FASTEST = 5.0  # speeds are clipped before each step


def model_text(rows: tuple[str, ...]) -> str:
    """MuJoCo's description of a maze. The ball's coordinates 0 lie at 1.2, tile (0, 0) at 1; the
    contact margin of 2 mm is the ball's alone, so that it is the same whether margins of two
    bodies are added (MuJoCo 3.5 and later) or the larger one is taken."""
    walls = "".join(
        f'<geom type="box" pos="{x + 1} {y + 1} 0" size=".5 .5 .2" contype="2" conaffinity="1"/>'
        for x, row in enumerate(rows)
        for y, tile in enumerate(row)
        if tile == "#"
    )
    joints = "".join(
        f'<joint name="{name}" type="slide" axis="{axis}" damping="1"/>'
        for name, axis in (("x", "1 0 0"), ("y", "0 1 0"))
    )
    motors = "".join(
        f'<motor joint="{name}" gear="100" ctrllimited="true" ctrlrange="-1 1"/>' for name in "xy"
    )
    return f"""
    <mujoco>
      <compiler inertiafromgeom="true"/>
      <option timestep="0.01" gravity="0 0 0" iterations="20" integrator="Euler"/>
      <default><geom friction=".5 .1 .1" density="1000" condim="1"/></default>
      <worldbody>{walls}
        <body pos="1.2 1.2 0">{joints}
          <geom type="sphere" size="0.1" margin="0.002" contype="1" conaffinity="1"/>
        </body>
      </worldbody>
      <actuator>{motors}</actuator>
    </mujoco>"""


class Maze2D(gymnasium.Env):
    """Observation: position and speed of the ball in tiles [4]; action: forces [2] in [-1, 1].

    Starts: a free tile or the goal, +-0.1, with speeds of deviation 0.1. The reward after a step is
    1 within 0.5 of the goal, else 0 (`sparse`), or exp(-distance) (`dense`). Nothing ends an
    episode but its limit. Raises `ConfigError` for another maze or reward.
    """

    def __init__(self, maze: str = "umaze", reward: str = "sparse") -> None:
        if maze not in MAZES:
            raise unknown_name("maze", maze, MAZES)
        if reward not in ("sparse", "dense"):
            raise ConfigError(f"reward is {reward!r}; allowed: sparse, dense")
        import mujoco

        self._mujoco, self.reward = mujoco, reward
        self.model = mujoco.MjModel.from_xml_string(model_text(MAZES[maze]))
        self.data = mujoco.MjData(self.model)
        tiles = [(x, y, t) for x, row in enumerate(MAZES[maze]) for y, t in enumerate(row)]
        self.starts = np.array([(x, y) for x, y, tile in tiles if tile != "#"], np.float64)
        self.goal = np.array(next((x, y) for x, y, tile in tiles if tile == "G"), np.float64)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.max_episode_steps = STEPS[maze]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new start; `seed` restarts the generator of starts."""
        super().reset(seed=seed)
        self._mujoco.mj_resetData(self.model, self.data)
        tile = self.starts[self.np_random.integers(len(self.starts))]
        self.data.qpos[:] = tile + self.np_random.uniform(-0.1, 0.1, 2)
        self.data.qvel[:] = 0.1 * self.np_random.standard_normal(2)
        self._mujoco.mj_forward(self.model, self.data)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of 0.01 s; actions beyond the bounds are clipped."""
        self.data.qvel[:] = np.clip(self.data.qvel, -FASTEST, FASTEST)
        self.data.ctrl[:] = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        self._mujoco.mj_step(self.model, self.data)
        obs = self._obs()
        distance = float(np.linalg.norm(obs[:2] - self.goal))
        reward = float(distance <= REACHED) if self.reward == "sparse" else float(np.exp(-distance))
        return obs, reward, False, False, {"success": distance <= REACHED}

    def _obs(self) -> np.ndarray:
        return np.concatenate([self.data.qpos, self.data.qvel])

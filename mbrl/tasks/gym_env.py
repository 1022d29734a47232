"""Tasks of this library as gymnasium environments: after `import mbrl.tasks`, which every use of
the library makes, `gymnasium.make("longreach/PointMass-v0")`."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from mbrl.tasks import make


class TaskEnvironment(gymnasium.Env):
    """One row of the task `task_id`, float32; gymnasium's registry adds its limit.

    Starts come from a generator of this environment: `reset(seed=...)` begins it anew, and the
    start is `task.reset(1, torch.Generator().manual_seed(seed))`. Actions are given to the task as
    they are, within the bounds.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, task_id: str, render_mode: str | None = None, **options: Any) -> None:
        self.task, self.render_mode = make(task_id, **options), render_mode
        spec = self.task.spec
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (spec.obs_dim,), np.float32)
        if spec.discrete:
            self.action_space = gymnasium.spaces.Discrete(spec.num_actions or 0)
        else:
            low, high = (np.array(b, np.float32) for b in (spec.action_low, spec.action_high))
            self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self._generator = torch.Generator()
        self._generator.seed()
        self._state: torch.Tensor | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new start; `seed` begins the starts anew."""
        super().reset(seed=seed)
        if seed is not None:
            self._generator.manual_seed(seed)
        self._state = self.task.reset(1, self._generator)
        obs: np.ndarray = self.task.observe(self._state)[0].numpy()
        return obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of the task; truncated where the task cuts it (the registry's limit does the
        rest)."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        given = torch.as_tensor(np.asarray(action))[None]
        step = self.task.step(self._state, given if self.task.spec.discrete else given.float())
        self._state = step.state
        obs: np.ndarray = step.obs[0].numpy()
        cut = step.truncated is not None and bool(step.truncated)
        return obs, float(step.reward), bool(step.terminated), cut, {}

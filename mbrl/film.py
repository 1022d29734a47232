"""A policy at work as an animated picture, in any environment of gymnasium that renders."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from mbrl.errors import ConfigError, TaskError, optional_packages
from mbrl.evaluation import START_SEED, evaluate
from mbrl.tasks.gym_task import GymTask

LONGEST = 2000  # frames of a film
FORMATS = (".gif", ".webp")


class Camera(gymnasium.Wrapper):  # type: ignore[misc]
    """Keeps a picture [height, width, 3] of every state that the environment was in."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.frames: list[np.ndarray] = []

    def reset(self, **kwargs: Any) -> Any:
        begun = super().reset(**kwargs)
        self._take()
        return begun

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._take()
        return result

    def _take(self) -> None:
        if len(self.frames) < LONGEST:
            self.frames.append(np.asarray(self.env.render()))


def film(
    agent: Any,
    task: str,
    path: Path | str,
    *,
    episodes: int = 1,
    seed: int = START_SEED,
    deterministic: bool = True,
) -> np.ndarray:
    """Write `episodes` of `agent` in the environment with gymnasium's id `task` to `path`, a GIF or
    WebP (by its name) of at most 2,000 frames at the environment's own speed, and give their
    returns [episodes], float64. Raises `ConfigError` for an environment without pictures or another
    kind of file, and where pillow, or what the environment draws with, is not installed."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ConfigError(f"film is {path}; the name must end with {' or '.join(FORMATS)}")
    with optional_packages("plots", "films"):
        from PIL import Image
    camera = Camera(_rendering(task))
    filmed = GymTask(lambda: camera, copies=1)
    camera.frames.clear()  # of the constructor's look at the spaces
    returns = evaluate(agent, filmed, episodes, seed=seed, deterministic=deterministic)
    fps = camera.metadata.get("render_fps") or 30
    pictures = [Image.fromarray(frame) for frame in camera.frames]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Viewers slow down pictures of less than 20 ms.
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=max(1000 / fps, 20), loop=0
    )
    camera.close()
    return returns


def _rendering(task: str) -> Any:
    """The environment with pictures as arrays, seen to work."""
    task = task if task in gymnasium.registry else f"longreach/{task}"
    if task not in gymnasium.registry:
        raise ConfigError(f"task {task!r} is not registered with gymnasium, which draws the film")
    modes = gymnasium.make(task).metadata.get("render_modes") or []
    if "rgb_array" not in modes:
        raise ConfigError(
            f"{task} draws no pictures (its render modes: {', '.join(modes) or 'none'}); a film "
            "needs rgb_array"
        )
    env = gymnasium.make(task, render_mode="rgb_array", disable_env_checker=True)
    try:
        env.reset(seed=0)
        env.render()
    except Exception as problem:  # packages and graphics drivers fail in ways of their own
        raise TaskError(
            f"{task} could not draw: {problem}. Classic control needs pygame, MuJoCo a graphics "
            "library (MUJOCO_GL=egl or osmesa)"
        ) from problem
    return env

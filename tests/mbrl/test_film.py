"""Films of policies, in an environment that draws its state as the brightness of its picture."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from PIL import Image

import longreach as lr
from algorithms import BC
from mbrl.errors import ConfigError, TaskError
from mbrl.film import film


class Lamp(gymnasium.Env):
    """Counts its steps; a step pays one, and the picture gets lighter with each."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(-1, 9, (3,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, render_mode=None, broken=False):
        self.render_mode, self.broken = render_mode, broken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(3, self.steps, np.float32), 1.0, False, False, {}

    def render(self):
        if self.broken:
            raise OSError("no screen")
        return np.full((8, 8, 3), 40 * self.steps, np.uint8)


@pytest.fixture(autouse=True)
def lamps():
    names = {"Lamp-v0": {}, "BrokenLamp-v0": {"broken": True}}
    for name, kwargs in names.items():
        gymnasium.register(name, entry_point=Lamp, kwargs=kwargs, max_episode_steps=5)
    yield
    for name in names:
        del gymnasium.registry[name]


def agent():
    return BC(lr.make("Lamp-v0").spec, seed=0)


@pytest.mark.parametrize("name", ["policy.gif", "policy.webp"])
def test_every_state_of_every_episode_is_a_picture(tmp_path, name):
    returns = film(agent(), "Lamp-v0", tmp_path / "new" / name, episodes=2)
    assert returns.tolist() == [5.0, 5.0]
    with Image.open(tmp_path / "new" / name) as picture:
        levels = []
        for k in range(picture.n_frames):
            picture.seek(k)
            levels.append(int(np.asarray(picture.convert("RGB")).mean()))
            assert picture.info["duration"] == 100  # ms: ten pictures a second
    assert levels == pytest.approx([40 * k for k in range(6)] * 2, abs=3)


@pytest.mark.parametrize(
    ("task", "file", "error", "words"),
    [
        ("Lamp-v0", "policy.mp4", ConfigError, "must end with .gif or .webp"),
        ("PointMass-v0", "p.gif", ConfigError, "draws no pictures"),
        ("NoSuch-v0", "p.gif", ConfigError, "not registered with gymnasium"),
        ("BrokenLamp-v0", "p.gif", TaskError, "could not draw: no screen"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, task, file, error, words):
    with pytest.raises(error, match=words):
        film(agent(), task, tmp_path / file)
    assert not (tmp_path / file).exists()

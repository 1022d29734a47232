"""What tests of several files begin with."""

from pathlib import Path

import pytest

from algorithms.language import tasks
from algorithms.language.imitation import Imitation, ImitationConfig
from mbrl.training import train
from tests.algorithms.language.small import MODEL, Digits


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows that answers are digits, and not which."""
    path = tmp_path_factory.mktemp("warm") / "checkpoint.pt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tasks.TASKS, "digits", Digits())
        config = ImitationConfig(task="digits", model=MODEL, learning_rate=1e-2, rows=32)
        agent = Imitation(config=config)
        train(agent, 60)
        agent.save(path)
    return path

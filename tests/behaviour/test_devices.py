"""Every verb that trains refuses a device that is not there, before any work."""

from pathlib import Path

import pytest
import torch

from experiments.cli import model, run, search, solve, sweep, table
from mbrl.errors import ConfigError

PENDULUM = "pendulum/expert"
VERBS = {
    "run": (run, ["bc", PENDULUM]),
    "solve": (solve, [PENDULUM]),
    "sweep": (sweep, ["--algorithms", "bc", "--data", PENDULUM]),
    "search": (search, ["bc", PENDULUM, "--hyperparameter", "learning_rate=0.1:0.2"]),
    "table": (table, ["classic"]),
    "model fit": (model, ["fit", PENDULUM]),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("device", ["cuda", "gpu"])
def test_a_device_that_is_not_here_is_refused(
    verb: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module, arguments = VERBS[verb]
    with pytest.raises(ConfigError, match=f"device is '{device}'"):
        module.main([*arguments, "--device", device])
    assert not list(tmp_path.rglob("records"))


def test_ray_and_studies_have_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.runs.launchers.resolve_device", lambda name: None)
    with pytest.raises(ConfigError, match="the launcher `ray` gives a job one processor"):
        sweep.main([*VERBS["sweep"][1], "--device", "cuda", "--launcher", "ray"])
    with pytest.raises(ConfigError, match="consists of studies, which run on the CPU"):
        table.main(["hints", "--device", "cuda"])

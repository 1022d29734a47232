"""The verb `bench`: the table and the record."""

import json
from importlib import metadata

import pytest
import torch

from experiments.__main__ import main
from experiments.bench import measure
from mbrl.errors import ConfigError


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(list(measure.WORKLOADS), marks=pytest.mark.long, id="all"),
        pytest.param(["rollout_single"], id="one"),
    ],
)
def test_quick_measures_workloads_and_writes_a_record(names, tmp_path, capsys):
    out = tmp_path / "a" / "record.json"
    threads = torch.get_num_threads()
    assert main(["bench", "--quick", "--workloads", *names, "--out", str(out)]) == 0
    assert torch.get_num_threads() == threads
    record = json.loads(out.read_text())
    assert set(record["workloads"]) == set(names)
    for result in record["workloads"].values():
        assert result["rate"] > 0 and len(result["windows"]) == measure.WINDOWS
        middle = (
            max(result["ceiling_before"].values()) + max(result["ceiling_after"].values())
        ) / 2
        assert result["share"] == pytest.approx(result["rate"] / middle)
    assert record["versions"]["torch"] == metadata.version("torch")
    shown = capsys.readouterr().out
    assert "recorded" in shown and "quick" in shown
    assert ("model_fit" in shown) == ("model_fit" in names)


def test_a_wrong_name():
    with pytest.raises(SystemExit):
        main(["bench", "--workloads", "fast"])


def test_a_figure_needs_curves(tmp_path):
    with pytest.raises(ConfigError, match="drawn of --curves alone"):
        measure.Bench(figure=tmp_path / "x.png")

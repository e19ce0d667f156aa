import pytest
import torch
from torch import nn

from forgetless.experiments import record
from forgetless.paper.filters import FilterWatch, measure_filters
from forgetless.paper.reproduce import Options, plan_runs


def test_filter_changes_are_means_within_and_across_tasks():
    network = nn.Sequential(nn.Conv2d(1, 2, 1))
    weight = network[0].weight
    watch = FilterWatch(network)
    for task, values in ((1, (0.0, 0.0)), (1, (1.0, 2.0)), (1, (2.0, 3.0)), (2, (7.0, 4.0))):
        with torch.no_grad():
            weight.copy_(torch.tensor(values).reshape(2, 1, 1, 1))
        watch.observe(task)
    assert watch.changes() == {"0": {"within": [1.0, 1.5], "across": [5.0, 1.0]}}


def test_a_run_is_measured_once(tmp_path):
    given = {"network": "helpers:narrow_resnet", "epochs": 2, "batch": 100, "lr": 0.03}
    (run,) = plan_runs("seq-digits", "sgd", given, Options(seeds=1))
    measured = measure_filters(run, tmp_path)
    assert record.read(record.path(tmp_path, run.settings)) == measured
    assert set(measured.details["filters"]["conv1"]) == {"within", "across"}
    assert len(measured.details["filters"]["conv1"]["across"]) == 4
    assert measure_filters(run, tmp_path).seconds == measured.seconds  # read, not trained again


def test_a_run_too_short_for_changes_is_an_error():
    watch = FilterWatch(nn.Conv2d(1, 1, 1))
    watch.observe(1)
    watch.observe(2)
    with pytest.raises(ValueError, match="it needs two tasks of at least two epochs"):
        watch.changes()

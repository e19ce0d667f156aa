import pytest
import torch
from torch import nn

from forgetless.experiments import record
from forgetless.paper import filters
from forgetless.paper.filters import _Watch
from forgetless.paper.reproduce import Options, planned


def test_changes_are_means_over_filters_within_and_across_tasks():
    network = nn.Sequential(nn.Conv2d(1, 2, 1))
    weight = network[0].weight
    watch = _Watch(network)
    for task, values in ((1, (0.0, 0.0)), (1, (1.0, 2.0)), (1, (2.0, 3.0)), (2, (7.0, 4.0))):
        with torch.no_grad():
            weight.copy_(torch.tensor(values).reshape(2, 1, 1, 1))
        watch.see(task)
    assert watch.changes() == {"0": {"within": [1.0, 1.5], "across": [5.0, 1.0]}}


def test_a_run_is_watched_once_and_is_otherwise_the_run_it_would_be(tmp_path):
    given = {"network": "helpers:narrow_resnet", "epochs": 2, "batch": 100, "lr": 0.03}
    (run,) = planned("seq-digits", "sgd", given, Options(seeds=1))
    made = filters.measure(run, tmp_path)
    assert record.read(record.path(tmp_path, run.settings)) == made
    assert set(made.details["filters"]["conv1"]) == {"within", "across"}
    assert len(made.details["filters"]["conv1"]["across"]) == 4
    assert filters.measure(run, tmp_path).seconds == made.seconds  # read, not done again


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="Linear has no convolutions"):
        _Watch(nn.Linear(2, 2))
    watch = _Watch(nn.Conv2d(1, 1, 1))
    watch.see(1)
    watch.see(2)
    with pytest.raises(ValueError, match="no change within was seen: a run needs two epochs a task or more"):
        watch.changes()

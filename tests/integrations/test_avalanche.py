"""FPF as a plugin of Avalanche."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from two_tasks import SETTINGS, data, import_example, network

from forgetless import FPF


def test_k_fpf_gains_30_points_on_digits_with_avalanche(avalanche, monkeypatch):
    warnings.simplefilter("ignore")
    digits = import_example("avalanche_digits", monkeypatch)
    assert digits.run("k-FPF")[0] >= digits.run("plain")[0] + 30


def test_replayed_examples_are_not_stored_again(avalanche, monkeypatch):
    """There are 1437 training images, and three epochs offer each of them three times."""
    warnings.simplefilter("ignore")
    digits = import_example("avalanche_digits", monkeypatch)
    accuracy, fpf = digits.run("FPF", replay=True)
    assert fpf.buffer.seen == 3 * 1437
    assert len(fpf.shifts) == 4
    assert accuracy > 80


def test_an_online_stream_has_the_tasks_of_its_experiences(avalanche):
    warnings.simplefilter("ignore")
    from avalanche.benchmarks import nc_benchmark, split_online_stream
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import IncrementalClassifier
    from avalanche.training.supervised import Naive

    def strategy(model):
        fpf = FPF(model, **SETTINGS)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return fpf, Naive(
            model=model, optimizer=optimizer, train_mb_size=5, plugins=[avalanche.FPFPlugin(fpf)], evaluator=None
        )

    dataset = TensorDataset(*data())
    dataset.targets = data()[1].tolist()
    whole = as_classification_dataset(dataset)
    benchmark = nc_benchmark(whole, whole, n_experiences=2, task_labels=False, fixed_class_order=[0, 1, 2, 3])
    fpf, online = strategy(network())
    for experience in split_online_stream(benchmark.train_stream, experience_size=10):
        online.train(experience)
    assert fpf.step == 12
    assert fpf.shifts == [6]
    _, growing = strategy(nn.Sequential(nn.Linear(6, 8), IncrementalClassifier(8)))
    with pytest.raises(ValueError, match="the model has layers that grow or depend on task labels"):
        growing.train(benchmark.train_stream[0])

import pytest
import torch
from torch import nn

from forgetless import NonFiniteError
from forgetless.methods.sgd import SGD
from forgetless.training.evaluation import evaluate
from forgetless.training.loop import train
from helpers import learner, small_stream

STREAM = small_stream()


class Fixed(nn.Module):
    """Always the same scores."""

    def __init__(self, *scores):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))

    def forward(self, x):
        return self.scores.expand(len(x), -1)


def share(task, label):
    y = STREAM.tasks[task].test.y
    return 100 * (y == label).float().mean().item()


def test_class_il_and_task_il_compare_different_classes():
    network = Fixed(0.0, 1.0, 2.0, 9.0, 4.0, 3.0)  # says 3 always; among 0 and 1 it says 1; among 4 and 5 it says 4
    found = evaluate(learner(network, STREAM), SGD(), STREAM, batch=5)
    assert found.class_il == pytest.approx([0.0, share(1, 3), 0.0])
    assert found.task_il == pytest.approx([share(0, 1), share(1, 3), share(2, 4)])


def test_evaluation_uses_and_then_leaves_evaluation_mode():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 6))
    network[0].eval()
    seen = []
    network[2].register_forward_hook(lambda module, *_: seen.append(module.training))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    evaluate(learner(network, STREAM), SGD(), STREAM)
    assert not any(seen)
    assert [module.training for module in network] == [False, True, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_outputs_that_are_nan_are_an_error():
    network = Fixed(0.0, 1.0, 2.0, 9.0, 4.0, torch.nan)
    size = len(STREAM.tasks[0].test)
    with pytest.raises(NonFiniteError, match=f"the outputs for {size} of the {size} test images of task 1 of 'small'"):
        evaluate(learner(network, STREAM), SGD(), STREAM, batch=5)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 6)), "shapes cannot be multiplied"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 6)).double(), "same dtype"),
    ],
)
def test_an_error_on_the_inputs_names_their_shape(network, said):
    with pytest.raises(ValueError, match=rf"cannot take images of 'small', \(1, 2, 2\) in torch.float32: .*{said}"):
        list(train(small_stream(), SGD(), network, batch=6))


def test_a_wrong_number_of_outputs_is_refused_before_training():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8))
    with pytest.raises(ValueError, match=r"outputs of shape \(8,\); stream 'small' has 6 classes, so there must be 6"):
        list(train(small_stream(), SGD(), network, batch=6))

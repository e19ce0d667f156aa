"""SGD, joint training and masked SGD: one step against a gradient computed here."""

import copy

import pytest
import torch
import torch.nn.functional as F

from forgetless.data.builders import from_tensors
from forgetless.methods.joint import Joint
from forgetless.methods.learner import Batch
from forgetless.methods.masked import Masked
from forgetless.methods.sgd import SGD
from helpers import scaled, small_stream


@pytest.mark.parametrize("kind", [SGD, Joint])
def test_sgd_steps_along_the_cross_entropy(kind, make_network, make_batch, make_learner, assert_sgd_step):
    model = make_network()
    twin = copy.deepcopy(model)
    loss, columns = kind().step(make_learner(model), make_batch())
    expected = F.cross_entropy(twin(scaled(make_batch().x)), make_batch().y)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(columns["logits"], twin(scaled(make_batch().x)).detach())
    assert_sgd_step(model, twin, expected)


def test_masked_sgd_covers_only_the_classes_of_the_task(make_network, make_batch, make_learner, assert_sgd_step):
    model = make_network()
    twin = copy.deepcopy(model)
    loss, columns = Masked().step(make_learner(model), make_batch(1))
    logits = twin(scaled(make_batch(1).x))
    expected = F.cross_entropy(logits[:, 2:4], make_batch(1).y - 2)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(columns["logits"], logits.detach())  # all classes, for k-FPF
    assert_sgd_step(model, twin, expected)
    for row in (0, 1, 4, 5):
        assert torch.equal(model.fc2.weight[row], twin.fc2.weight[row])


def test_masked_sgd_is_sgd_if_tasks_share_classes(make_network, make_learner):
    stream = small_stream(scenario="domain")
    split = stream.tasks[1].train
    one, other = make_network(), make_network()
    for kind, model in ((SGD, one), (Masked, other)):
        kind().step(make_learner(model, stream), Batch(split.x[:4], split.y[:4], 1))
    assert not torch.equal(one.fc1.weight, make_network().fc1.weight)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_masked_sgd_is_sgd_on_a_task_of_one_class(make_network, make_learner):
    stream = from_tensors(torch.rand(60, 4), torch.arange(6).repeat(10), [1] * 6)
    split = stream.tasks[1].train
    one, other = make_network(), make_network()
    for kind, model in ((SGD, one), (Masked, other)):
        loss, _ = kind().step(make_learner(model, stream), Batch(split.x[:4], split.y[:4], 1))
        assert loss > 0
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)

"""The first ``observe`` tries forward and loss, and a repair that cannot happen is named at once."""

import copy
import pickle
import random
import warnings

import numpy
import pytest
import torch
import torch.nn.functional as F
from loops import make, normalised, shifting
from torch import nn

from forgetless import FPF, NonFiniteError

X, Y = torch.rand(8, 4), torch.arange(8) % 3


@pytest.mark.parametrize(
    ("given", "y", "error", "match"),
    [
        ({"forward": lambda model, x: model.missing(x)}, Y, AttributeError, "no attribute 'missing'"),
        ({"forward": lambda model, x: {"a": model(x)}}, Y, TypeError, "forward returned a dict, not a tensor of"),
        ({}, Y[:, None], ValueError, r"for logits of shape \(8, 3\) class labels must have \(8,\)"),
        ({}, Y + 3, ValueError, "labels from 3 to 5; the network has 3 outputs"),
        ({}, Y.float(), ValueError, "labels of a float dtype are probabilities"),
        ({}, {"a": Y}, TypeError, "y has the targets a, but the network returned a Tensor, without logits for 'a'"),
        ({"loss": lambda z, y: F.cross_entropy(z, y, reduction="none")}, Y, ValueError, r"a tensor of shape \(8,\)"),
        ({"loss": "model"}, Y, TypeError, "forward"),
        ({"augment": lambda x: x[:2]}, Y, ValueError, "made 2 rows of logits from 8 examples"),
    ],
)
def test_what_cannot_be_repaired_fails_with_the_first_batch(given, y, error, match):
    fpf = FPF(nn.Linear(4, 3), groups="all", **given)
    with pytest.raises(error, match=match):
        fpf.observe(X, y)
    assert (fpf.step, fpf.buffer.seen) == (0, 0)


def test_a_loaded_state_is_tried_too():
    model = nn.Linear(4, 3)
    saved = FPF(model, groups="all")
    saved.observe(X, Y)
    for fpf in (FPF(model, groups="all"), saved):
        fpf.load_state_dict(saved.state_dict())
        with pytest.raises(ValueError, match="labels from 3 to 5"):
            fpf.observe(X, Y + 3)
        assert (fpf.step, fpf.buffer.seen) == (1, 8)


@pytest.mark.parametrize("training", [True, False])
def test_the_trial_changes_nothing(training):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = normalised()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return F.dropout(self.net(x), 0.5, self.training)

    model = Counting().train(training)
    model.net.body.requires_grad_(False)
    fpf = FPF(model, groups="all", head="net.head", augment=lambda x: x + random.random() + numpy.random.rand())
    before, flags = copy.deepcopy(model.state_dict()), [p.requires_grad for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy(), fpf._generator.get_state()
    fpf.observe(*next(shifting((16,))))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == flags
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    now = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1], fpf._generator.get_state()
    assert torch.equal(now[0], states[0])
    assert now[1] == states[1]
    assert (now[2] == states[2]).all()
    assert torch.equal(now[3], states[3])


def test_one_trial_is_one_forward_pass_of_a_batch():
    model, sizes = nn.Linear(4, 3), []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    fpf = FPF(model, groups="all", batch=5)
    for _ in range(3):
        fpf.observe(X, Y)
    assert sizes == [5]


def test_batches_of_inference_mode_are_tried():
    with torch.inference_mode():
        x, y = X.clone(), Y.clone()
    fpf = FPF(nn.Linear(4, 3), groups="all")
    fpf.observe(x, y)
    assert fpf.step == 1


def test_unshifted_tokens_need_the_models_own_loss():
    tokens = torch.randint(6, (8, 5))
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6))
    labels = tokens.clone()
    labels[:, :2] = -100
    with pytest.raises(ValueError, match="y holds the input tokens themselves.* give loss='model' and pass"):
        FPF(model, groups="all").observe(tokens, labels)
    FPF(model, groups="all").observe(tokens[:, :-1], tokens[:, 1:])
    FPF(model, groups="all").observe(tokens, torch.full_like(tokens, -100))


def test_a_due_repair_that_cannot_happen_warns_once():
    model, shape = make("mlp")
    batches = list(shifting(shape))
    fpf = FPF(model, 64, every=5, steps=1)
    for x, y in batches[:4]:
        fpf.observe(x, y)
    with pytest.warns(UserWarning, match="was due at step 5, but nothing was finetuned: no shift of the data"):
        fpf.observe(*batches[4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in batches[5:12]:
            fpf.observe(x, y)


def test_a_due_repair_without_labels_warns_and_the_next_happens():
    model, shape = make("mlp")
    batches = list(shifting(shape))
    fpf = FPF(model, 64, every=2, steps=1, groups="all")
    x, y = batches[0]
    fpf.observe(x, torch.full_like(y, -100))
    with pytest.warns(UserWarning, match="due at step 2, but .* no example with a label"):
        fpf.observe(x, torch.full_like(y, -100))
    fpf.observe(x, y)
    assert fpf.observe(x, y) is not None


def test_a_repair_at_every_step_begins_with_the_second():
    model, shape = make("mlp")
    fpf = FPF(model, 64, every=1, steps=1, groups="all")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = [fpf.observe(*batch) for batch in list(shifting(shape))[:3]]
    assert [finetuned is None for finetuned in done] == [True, False, False]


def test_a_boundary_before_the_first_step_keeps_detection():
    model, shape = make("mlp")
    fpf = FPF(model, 64, window=5, steps=1)
    fpf.boundary()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in shifting(shape):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        fpf.observe(x, y)
    assert fpf.shifts == [60]
    assert fpf.finish() is not None


@pytest.mark.parametrize("name", ["2.weight", "0.running_var"])
def test_a_network_that_already_holds_nan_blames_training(name):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    fpf = FPF(model, groups=["head"], steps=2)
    fpf.observe(X, Y)
    with torch.no_grad():
        model.state_dict()[name][0] = torch.nan
    with pytest.raises(NonFiniteError, match=f"already holds NaN, in {name}, .* smaller learning rate in training"):
        fpf.finish()


def test_two_fpf_on_one_network_warn_once():
    model, shape = make("mlp")
    first, second = FPF(model, 64, groups="all"), FPF(model, 64, groups="all")
    x, y = next(shifting(shape))
    first.observe(x, y)
    second.observe(x, y)
    with pytest.warns(UserWarning, match="another FPF observes the same network"):
        first.observe(x, y)
    second.observe(x, y)
    first.observe(x, y)


def test_one_fpf_after_another_is_no_reason_to_warn():
    model, shape = make("mlp")
    batches = list(shifting(shape))
    for _ in range(2):
        fpf = FPF(model, 64, groups="all")
        for x, y in batches[:3]:
            fpf.observe(x, y)
    copied = copy.deepcopy(model)
    for other in (copied, pickle.loads(pickle.dumps(model))):
        another = FPF(other, 64, groups="all")
        for x, y in batches[:3]:
            fpf.observe(x, y)
            another.observe(x, y)
    both = copy.deepcopy((fpf, model))
    both[0].observe(*batches[0])
    assert both[0].step == fpf.step + 1
    assert b"forgetless.fpf" not in pickle.dumps(nn.Sequential(model))
    assert set(model.state_dict()) == set(make("mlp")[0].state_dict())

import copy

import pytest
import torch
import torch.nn.functional as F
from loops import MODE_NAMES, MODES, make, shifting
from torch import nn

from forgetless import FPF, NonFiniteError, networks


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"capacity": 0}, "capacity is 0; it must be a whole number of 1 or more"),
        ({"steps": 0}, "steps is 0; it must be"),
        ({"every": 0}, "every is 0; it must be"),
        ({"window": 0}, "window is 0; it must be"),
        ({"batch": -1}, "batch is -1; it must be"),
        ({"lr": -0.1}, "lr is -0.1; it must be"),
        ({"policy": "ring"}, "policy is 'ring'; it must be one of reservoir, balanced"),
        ({"groups": ["fc_3"]}, "no group named 'fc_3'; did you mean 'fc3'"),
        ({"groups": "fc33"}, "no group named 'fc33'; did you mean 'fc3'"),
        ({"groups": []}, "groups is empty"),
        ({"grouping": {"a": ["fc9.weight"]}}, "no parameter or float buffer named 'fc9.weight'"),
        ({"grouping": {"a": ["fc1.bias"], "b": ["fc1.bias"]}}, "'fc1.bias' is in both 'a' and 'b'"),
        ({"grouping": {}}, "grouping is empty"),
        ({"grouping": {"a": "fc1.bias"}}, "group 'a' is 'fc1.bias'; it must be a list"),
        ({"head": "fc7"}, "head='fc7' is not a module"),
        ({"lr": "a"}, "lr is 'a'; it must be a finite number above 0"),
        ({"distill": None}, "distill is None; it must be a finite number of 0 or more"),
        ({"threshold": "a"}, "threshold is 'a'; it must be a finite number"),
        ({"groups": None}, "groups is None; it must be auto, all, or names of groups"),
        ({"seed": None}, "seed is None; it must be a whole number"),
        ({"device": "gpu"}, "device is 'gpu'; it must be cpu, cuda"),
        ({"device": "cuda:99"}, "device is 'cuda:99', but torch sees"),
        ({"autocast": torch.float16}, "autocast is torch.float16, which needs a gradient scaler"),
        ({"autocast": True}, "autocast is True; it must be a dtype, such as torch.bfloat16"),
        ({"autocast": "bf16"}, "autocast is 'bf16'; it must be a dtype, such as torch.bfloat16"),
        ({"augment": 3}, "augment is 3; it must be a function of the inputs"),
    ],
)
def test_bad_settings_are_refused_at_once(settings, match):
    with pytest.raises(ValueError, match=match):
        FPF(networks.mlp(10), **settings)


def test_an_unrecognisable_head_is_refused():
    with pytest.raises(ValueError, match="LSTM has no recognisable head"):
        FPF(nn.LSTM(3, 4))


def test_a_network_with_lazy_layers_must_be_called_first():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"Sequential has uninitialised \(lazy\) parameters; call it once on a batch"):
        FPF(model)
    model(torch.rand(2, 4))
    FPF(model).observe(torch.rand(8, 4), torch.arange(8) % 3)


def test_a_fully_frozen_network_is_refused():
    for model in (networks.mlp(4), networks.resnet18(4, width=4)):
        with pytest.raises(ValueError, match="every parameter of .* is frozen"):
            FPF(model.requires_grad_(False))


def test_a_bad_batch_is_refused_and_changes_nothing():
    model, shape = make("mlp")
    fpf = FPF(model, 64, every=2, steps=1, distill=0.5, groups="all")
    x, y = next(shifting(shape))
    logits = model(x)
    fpf.observe(x, y, logits)
    for bad, match in (
        ((x, y + 10, logits), "labels from 10 to 11; the network has 10 outputs, so they must be 0 to 9"),
        ((x, y - 1, logits), "labels from -1 to 0"),
        ((x[:, :8], y, logits), r"'x' has examples of shape \(8,\); the buffer holds shape \(16,\)"),
        ((x.double(), y, logits), "'x' has dtype torch.float64; the buffer holds torch.float32"),
        ((x[:3], y, logits), "columns differ in length"),
        ((x, y), r"distill is 0.5, which needs logits: call observe\(x, y, logits\)"),
    ):
        with pytest.raises(ValueError, match=match):
            fpf.observe(*bad)
        assert (fpf.step, fpf.buffer.seen, fpf.finetunings) == (1, 16, 0)


def test_labels_of_another_shape_are_refused():
    model, shape = make("mlp")
    x, y = next(shifting(shape))
    for labels, match in (
        (y[:, None], r"y has shape \(16, 1\); for logits of shape \(16, 10\) class labels must have \(16,\)"),
        (y.float(), r"y has shape \(16,\); .* must have \(16, 10\)\. Class labels must be integers"),
    ):
        fpf = FPF(model, 64)
        with pytest.raises(ValueError, match=match):
            fpf.observe(x, labels, model(x))
        assert (fpf.step, fpf.buffer.seen) == (0, 0)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_later_bad_labels_without_logits_fail_at_the_finetuning(mode):
    model, shape = make("mlp")
    before = copy.deepcopy(model.state_dict())
    fpf = FPF(model, 64, groups="all", **mode)
    x, y = next(shifting(shape))
    fpf.observe(x, y)
    fpf.observe(x, y + 100)
    with pytest.raises(ValueError, match="labels from 0 to 101"):
        fpf.finish()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_empty_buffer_at_finish_is_refused():
    with pytest.raises(ValueError, match=r"the buffer is empty: call observe\(\)"):
        FPF(networks.mlp(10)).finish()


@pytest.mark.parametrize(
    ("y", "outputs"), [(torch.randn(16, 3), 3), (torch.rand(16, 1), 1), ((torch.rand(16, 4) > 0.5).float(), 4)]
)
def test_targets_that_are_no_probabilities_need_a_loss(y, outputs):
    model = nn.Linear(4, outputs)
    x = torch.rand(16, 4)
    fpf = FPF(model, groups="all")
    with pytest.raises(ValueError, match="not class probabilities.* give it: loss=…"):
        fpf.observe(x, y, model(x))
    fpf = FPF(model, groups="all", loss=nn.functional.mse_loss)
    fpf.observe(x, y, model(x))
    report = fpf.finish()  # the targets are noise, so that a repair may lower no held-out loss
    assert report.loss_after <= report.loss_before
    assert report.accuracy_after is None
    fpf = FPF(model, groups="all", steps=50, lr=0.1, loss=nn.functional.mse_loss)
    fpf.observe(x, y, model(x))
    losses = fpf.finish().losses
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_smoothed_and_mixed_labels_are_probabilities(mode):
    model, x = nn.Linear(4, 5), torch.rand(16, 4)
    hard = nn.functional.one_hot(torch.arange(16) % 5, 5).float()
    mixed = 0.7 * (0.9 * hard + 0.02) + 0.3 * hard.flip(0)
    fpf = FPF(model, groups="all", **mode)
    fpf.observe(x, mixed.half(), model(x))
    assert fpf.finish() is not None


def test_non_finite_examples_are_counted_in_the_error():
    model, x = nn.Linear(4, 2), torch.rand(8, 4)
    x[3, 1] = torch.nan
    fpf = FPF(model, groups="all", steps=2)
    fpf.observe(x, torch.zeros(8, dtype=torch.int64))
    with pytest.raises(NonFiniteError, match="The buffer holds NaN or infinity: 1 of its 8 rows of x"):
        fpf.finish()


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_examples_without_a_label_are_named_in_the_error(mode):
    model, shape = make("mlp")
    fpf = FPF(model, 64, groups=["fc3"], **mode)
    x, y = next(shifting(shape))
    fpf.observe(x, torch.full_like(y, -100))
    with pytest.raises(ValueError, match="the buffer holds no example with a label: every y is -100 or NaN"):
        fpf.finish()


def test_several_inputs_must_be_a_mapping():
    fpf = FPF(nn.Linear(4, 2), groups="all")
    with pytest.raises(TypeError, match=r"column 'x' is a tuple; .*; give a tensor, or several as a mapping"):
        fpf.observe((torch.rand(2, 4), torch.rand(2, 4)), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (
            {"forward": torch.no_grad()(lambda model, x: model(x))},
            ValueError,
            "detaches it or runs under",
        ),
        ({"loss": lambda logits, y: F.cross_entropy(logits, y).detach()}, ValueError, "does not depend on the tensors"),
        ({"loss": lambda logits, y: 1.0}, ValueError, "loss returned a float; it must return one number, as a tensor"),
        (
            {"forward": lambda model, x: (model(x),)},
            TypeError,
            "forward returned a tuple, not a tensor of logits",
        ),
    ],
)
def test_a_loss_that_cannot_be_finetuned_fails_at_once(given, error, match):
    model, shape = make("mlp")
    fpf = FPF(model, 64, groups=["fc3"], steps=2, **given)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=match):
        fpf.observe(*next(shifting(shape)))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert (fpf.step, fpf.buffer.seen, fpf.finetunings) == (0, 0, 0)


def test_an_output_that_is_not_the_logits_is_refused():
    model, shape = make("mlp")
    fpf = FPF(model, 64)
    x, y = next(shifting(shape))
    with pytest.raises(TypeError, match=r"logits is a dict; give the tensor in it, such as output\.logits"):
        fpf.observe(x, y, {"logits": model(x)})
    assert fpf.step == 0


def test_an_output_without_classes_needs_a_loss():
    fpf = FPF(nn.Linear(4, 1), groups="all")
    with pytest.raises(ValueError, match="output has shape .* another loss than cross-entropy"):
        fpf.observe(torch.rand(8, 4), torch.rand(8), torch.rand(8))


def test_a_network_without_keyword_arguments_fails_at_once():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, batch):
            return self.fc(batch["image"])

    x, y = {"image": torch.rand(8, 4)}, torch.arange(8) % 3
    with pytest.raises(
        TypeError, match=r"called with the keyword arguments image: .* give forward=lambda model, x: model\(x\)"
    ):
        FPF(Whole(), groups="all").observe(x, y)
    fpf = FPF(Whole(), groups="all", steps=2, forward=lambda model, x: model(x))
    fpf.observe(x, y)
    assert fpf.finish() is not None


def test_batch_norm_with_one_example_says_what_to_do():
    fpf = FPF(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), groups="all", batch=1, head="0")
    fpf.observe(torch.rand(8, 4), torch.arange(8) % 3)
    match = r"batch norm needs at least 2 examples per batch: draw more \(batch is 1, the buffer holds 8\)"
    with pytest.raises(ValueError, match=match):
        fpf.finish()

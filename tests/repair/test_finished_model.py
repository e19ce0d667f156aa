"""A finished network recovers what it forgot, and what is not repaired stays as it is."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import forgetless
from finished import accuracy, blobs, forgetful
from forgetless.memory.buffer import Buffer
from forgetless.repair.displacement import displacement_scores, highest
from forgetless.repair.examples import fill_buffer
from forgetless.repair.objective import Objective
from helpers import all_equal, weights_of


@pytest.fixture(scope="module")
def trained():
    return forgetful()


@pytest.fixture
def model(trained):
    return copy.deepcopy(trained[0])


@pytest.fixture
def before(trained):
    return trained[1]


def test_the_package_is_also_a_function(model):
    assert forgetless.repair.__name__ == "forgetless.repair"
    assert forgetless.memory.buffer.Buffer is Buffer
    assert forgetless.repair(model, blobs(100, seed=5), steps=20).examples == 100


def test_importing_the_package_does_not_import_torch():
    code = "import sys, forgetless\nassert callable(forgetless.repair)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_repair_recovers_the_old_classes_and_keeps_the_new(model, before):
    assert (accuracy(model, old=True), accuracy(model, old=False)) == (0, 1)
    report = forgetless.repair(model, blobs(100, seed=5), before)
    assert accuracy(model, old=True) > 0.95
    assert accuracy(model, old=False) > 0.95
    assert (report.examples, report.held_out) == (100, 13)
    assert report.accuracy_after > report.accuracy_before
    assert report.loss_after < report.loss_before
    assert [line.before for line in report.classes] == [0, 0, 0, 1, 1, 1]


def test_groups_that_are_not_repaired_keep_their_bits(model):
    weights = weights_of(model)
    report = forgetless.repair(model, blobs(100, seed=5), groups=["head"])
    assert report.repaired == ("head",)
    assert all_equal(weights_of(model)[:4], weights[:4])
    assert not all_equal(weights_of(model)[4:], weights[4:])
    assert accuracy(model, old=True) > 0.9


def test_a_file_gives_the_same_repair_as_the_state_dict(model, before, tmp_path):
    torch.save(before, tmp_path / "before.pt")
    other = copy.deepcopy(model)
    report = forgetless.repair(model, blobs(100, seed=5), before, steps=20)
    same = forgetless.repair(other, blobs(100, seed=5), tmp_path / "before.pt", steps=20)
    assert all_equal(weights_of(model), weights_of(other))
    assert report.groups == same.groups


def test_repair_leaves_modes_flags_and_randomness_alone(model, before):
    model.eval()
    state = torch.get_rng_state()
    forgetless.repair(model, blobs(100, seed=5), before, steps=20)
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_scores_are_displacement_times_gradient():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[1].weight.copy_(torch.tensor([[1.0, 2.0]]))
    # The loss is the mean of w2·(W1 x) over x = (1, 0) and (3, 4): ∇w2 = W1 x̄ = (2, 2), ∇W1 = w2ᵀ x̄ᵀ.
    examples = {"x": torch.tensor([[1.0, 0.0], [3.0, 4.0]]), "y": torch.tensor([0.0, 0.0])}
    objective = Objective(loss=lambda logits, _: logits.mean())
    before = {"0.weight": torch.zeros(2, 2), "1.weight": torch.tensor([[0.5, 3.0]])}
    groups = {"first": ["0.weight"], "second": ["1.weight"], "none": []}
    scores = displacement_scores(model, fill_buffer(examples), objective, before, groups)
    assert scores == {"first": 6.0, "second": -1.0, "none": None}  # Σ I ∘ [[2, 2], [4, 4]]; (0.5, −1)·(2, 2)


def test_the_highest_scores_make_up_nine_tenths():
    assert highest({"stem": 0.5, "block1": -2.0, "head": 9.0}) == ("head",)
    assert highest({"stem": 4.0, "block1": 1.0, "head": 5.0}) == ("stem", "head")
    assert highest({"norm.affine": 1.0, "norm.stats": None, "head": 0.05}) == ("norm.affine", "norm.stats")
    assert highest({"stem": -1.0, "head": None}) == ()


def test_nothing_changes_if_no_repair_helps():
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    report = forgetless.repair(model, (torch.zeros(64, 4), torch.arange(64) % 2))  # log 2 is the lowest loss
    assert (report.steps, report.loss_after) == (0, report.loss_before)
    assert (report.repaired, report.share) == ((), 0)
    assert not model.weight.any()
    assert not model.bias.any()
    assert "no repair lowered the held-out loss by more than noise, so the weights are unchanged" in str(report)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": blobs(10, seed=0)}, "examples has 10 labelled examples; a repair needs at least 16"),
        (
            {"examples": (torch.rand(20, 5), torch.arange(20) % 6)},
            r"examples do not fit Sequential \(one has x \(5,\)\)",
        ),
        ({"examples": (torch.rand(20, 8), torch.arange(20))}, "y holds labels from 0 to 19; the network has 6 outputs"),
        ({"before": {"0.weight": torch.zeros(3, 8)}}, "before is of another architecture than Sequential: 0.weight"),
        ({"before": "gone.safetensors"}, "before is 'gone.safetensors', which does not exist"),
        ({"groups": ["tail"]}, "no group named 'tail'"),
    ],
)
def test_bad_input_is_refused_before_the_network_changes(model, arguments, message):
    weights = weights_of(model)
    with pytest.raises(ValueError, match=message):
        forgetless.repair(model, **{"examples": blobs(100, seed=5), **arguments})
    assert all_equal(weights_of(model), weights)


def test_the_present_weights_are_not_those_from_before(model):
    with pytest.raises(ValueError, match="before holds the network's present weights"):
        forgetless.repair(model, blobs(100, seed=5), model.state_dict())


def test_an_interrupted_repair_restores_the_network(model, before, monkeypatch):
    calls = 0

    def interrupt(model, x):
        nonlocal calls
        calls += 1
        if calls == 200:
            raise KeyboardInterrupt
        return model(x)

    weights = weights_of(model)
    with pytest.raises(KeyboardInterrupt):
        forgetless.repair(model, blobs(100, seed=5), before, forward=interrupt)
    assert all_equal(weights_of(model), weights)


def test_a_network_may_handle_missing_numbers_itself():
    class Filling(nn.Linear):
        def forward(self, x):
            return super().forward(x.nan_to_num())

    torch.manual_seed(0)
    model, x, y = Filling(4, 2), torch.rand(64, 4), torch.arange(64) % 2
    x[y == 1] += 1
    x[::3, 3] = torch.nan
    report = forgetless.repair(model, (x, y))
    assert report.loss_after < report.loss_before

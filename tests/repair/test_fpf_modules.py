"""Networks with buffers, caches, statistics and modes of their own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from loops import MODE_NAMES, MODES, in_two_tasks, make, normalised, repaired, run, shifting
from torch import nn

import forgetless
from forgetless import FPF, NonFiniteError


class Cached(nn.Module):
    """Keeps a mask, and positions in floats, as long as the longest input so far; neither is part of its state."""

    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(30, 8), nn.Linear(8, 4)
        self.register_buffer("mask", torch.ones(2, 1, dtype=torch.bool), persistent=False)
        self.register_buffer("positions", torch.zeros(2, 8), persistent=False)

    def forward(self, x):
        length = x.shape[1]
        if len(self.mask) < length:
            self.mask, self.positions = torch.ones(length, 1, dtype=torch.bool), torch.zeros(length, 8)
        return self.fc(((self.embedding(x) + self.positions[:length]) * self.mask[:length]).mean(1))


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_caches_that_follow_the_input_are_not_tracked(mode):
    model = Cached()
    assert "positions" not in {name for names in forgetless.groups(model).values() for name in names}
    fpf = FPF(model, 20, groups=["head"], **mode)
    for length in (3, 6):
        x, y = torch.randint(30, (16, 6))[:, :length].repeat(1, 6 // length), torch.randint(4, (16,))
        model(torch.randint(30, (1, length + 5)))  # grows in an evaluation
        fpf.observe(x, y)
    later = Cached()
    later.load_state_dict(model.state_dict())
    again = FPF(later, 20, groups=["head"], **mode)
    again.load_state_dict(fpf.state_dict())
    assert again.finish().names == ("fc.weight", "fc.bias")  # grows while it is finetuned
    assert later.mask.shape == (2, 1)


class Centred(nn.Module):
    """Puts another tensor in the place of a buffer each time."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(8, 8), nn.Linear(8, 4)
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.detach().mean(0)
        return self.fc(self.body(x - self.centre))


def test_a_replaced_buffer_is_restored():
    torch.manual_seed(0)
    model = Centred()
    fpf = FPF(model, 20, groups="all", steps=30, lr=1e30)
    x, y = torch.randn(16, 8), torch.randint(4, (16,))
    model(x)
    fpf.observe(x, y)
    before = model.centre.clone()
    with pytest.raises(NonFiniteError, match="the network is as it was before it"):
        fpf.finish()
    assert torch.equal(model.centre, before)


def test_a_parameter_without_elements_is_left_out():
    model, shape = make("mlp")
    model.register_parameter("empty", nn.Parameter(torch.empty(0)))
    fpf = FPF(model, 64, grouping={"first": ["fc1.weight", "empty"], "last": ["fc3.weight"]}, steps=2)
    run(model, shape, fpf, announced=True)
    assert fpf.sensitivities().keys() == {"first", "last"}


@pytest.mark.parametrize("tested", [False, True])
def test_statistics_that_never_moved_are_not_chosen(tested):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    fpf = FPF(model, capacity=64, steps=5, window=3, threshold=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[1].eval()  # its weights are trained, its statistics not
    for step, (x, y) in enumerate(shifting((4,))):
        if step % 60 == 0:
            fpf.boundary()
        logits = model(x)
        optimizer.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimizer.step()
        fpf.observe(x, y, logits)
    before = model[1].running_mean.clone()
    if tested:
        model.eval()
    done = fpf.finish()
    assert "1.weight" in done.names
    assert not any("running" in name for name in done.names)
    assert torch.equal(model[1].running_mean, before)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tested", [False, True])
def test_statistics_of_a_part_frozen_later_stay(tested, affine, mode):
    model = normalised(affine)
    fpf = FPF(model, capacity=50, groups="all", **mode)
    in_two_tasks(model, fpf, lambda: model.body.requires_grad_(False).eval())
    before = copy.deepcopy(model.state_dict())
    if tested:
        model.eval()
    done = fpf.finish()
    assert "neck.1.running_mean" in done.names
    still = {name for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])}
    assert {name for name in before if name.startswith("body")} <= still
    assert not {"neck.1.running_mean", "neck.1.num_batches_tracked", "head.weight"} & still
    assert model.neck.training == (not tested)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("again", [False, True])
def test_statistics_of_a_resting_layer_stay(again, mode):
    model = normalised()
    fpf = FPF(model, capacity=50, groups="all", **mode)
    model.body[1].eval()
    in_two_tasks(model, fpf)
    if again:  # in another process
        state, fpf = fpf.state_dict(), FPF(model, capacity=50, groups="all", **mode)
        fpf.load_state_dict(state)
    before = copy.deepcopy(model.state_dict())
    model.eval()
    done = fpf.finish()
    assert {"body.1.weight", "neck.1.running_mean"} <= set(done.names)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(model.state_dict()[f"body.1.{name}"], before[f"body.1.{name}"])
    assert model.neck[1].num_batches_tracked == before["neck.1.num_batches_tracked"] + done.steps > 0


class Counting(nn.Module):
    """Takes the mean of all inputs seen away, and counts them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.count += len(x)
            self.mean += (x - self.mean).sum(0) / self.count
        return x - self.mean


@pytest.mark.parametrize("mode", [{"steps": 5, "threshold": 0.0}, {}], ids=MODE_NAMES)
@pytest.mark.parametrize("groups", ["auto", "all"])
def test_other_buffers_move_only_if_named(groups, mode):
    torch.manual_seed(0)
    model = nn.Sequential(Counting(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    fpf = FPF(model, capacity=60, groups=groups, batch=10, **mode)
    in_two_tasks(model, fpf)
    mean, count = model[0].mean.clone(), int(model[0].count)
    done = fpf.finish()
    assert ("0.mean" in done.names) == (groups == "all")
    assert torch.equal(model[0].mean, mean) == (groups == "auto")
    assert int(model[0].count) == count + (10 * done.steps if groups == "all" else 0)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_resting_statistics_stay_inside_a_wrapper(monkeypatch, mode):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # or DataParallel would call the GPU

    class Resting(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    network = Resting(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).train()
    model = nn.DataParallel(network)
    fpf = repaired(model, **mode)
    model.module.eval()
    fpf.finish()
    assert network[1].running_mean.tolist() == [0] * 8


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_an_unchosen_embedding_with_max_norm_stays(mode):
    """Its forward pass writes to its weight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8, max_norm=0.5), nn.Flatten(), nn.Linear(24, 3))
    fpf = FPF(model, groups=["head"], **mode)
    x = torch.randint(20, (16, 3))
    fpf.observe(x, x[:, 0] % 3)
    before = model[0].weight.detach().clone()
    assert (before.norm(dim=1) > 0.5).all()
    assert fpf.finish().names == ("2.weight", "2.bias")
    assert torch.equal(model[0].weight, before)


def test_a_cache_of_a_normalisation_layer_is_no_statistic():
    class Gained(nn.BatchNorm1d):
        def __init__(self, features):
            super().__init__(features)
            self.register_buffer("gain", torch.ones(features), persistent=False)

    network = nn.Sequential(nn.Linear(8, 8), Gained(8), nn.Linear(8, 3))
    for mode in MODES:
        assert "1.running_mean" in repaired(network, **mode).finish().names
    assert "1.gain" not in forgetless.groups(network)["norm.stats"]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_buffer_is_left_alone(layout, mode):
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 3)
            self.register_buffer("edges", torch.eye(8).to_sparse(layout=layout))

        def forward(self, x):
            return self.fc((self.edges @ x.mT).mT)

    network = Graph()
    assert repaired(network, **mode).finish().names == ("fc.weight", "fc.bias")
    assert torch.equal(network.edges.to_dense(), torch.eye(8))

import pytest
import torch
from loops import filled, moved, state
from torch import nn

import forgetless
from forgetless import Buffer, finetune, networks, only
from forgetless.repair.freezing import check_names


def test_only_restores_flags_and_modes_after_an_error():
    model = networks.resnet18(5, width=4).eval()
    with pytest.raises(KeyboardInterrupt), only(model, ["fc.weight"]):
        assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["fc.weight"]
        assert not model.bn1.training
        raise KeyboardInterrupt
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


def test_half_of_a_layers_statistics_is_refused():
    model = networks.resnet18(5, width=4)
    with pytest.raises(ValueError, match=r"statistics of bn1 move together: also name bn1\.running_var"):
        finetune(model, filled(), ["bn1.running_mean"])


def test_a_group_named_as_a_tensor_gets_a_hint():
    model = networks.mlp(5, inputs=12)
    with pytest.raises(ValueError, match=r"named 'fc3'; it is a group: forgetless.groups\(model\)\['fc3'\]"):
        finetune(model, filled(shape=(3, 2, 2)), ["fc3"])


def test_a_misspelt_name_needs_no_groups():
    network = nn.GRU(2, 2)  # which has no head that groups could recognise
    with pytest.raises(ValueError, match="the network has no parameter or float buffer named 'weigth'"):
        check_names(network, ["weigth"])


def test_a_frozen_part_stays_in_evaluation_mode():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 5))
    seen = []
    backbone[2].register_forward_hook(lambda module, *_: seen.append(module.training))
    for training in (True, False):
        model.train(training)
        backbone.eval()
        fpf = forgetless.FPF(model, groups="all", steps=2)
        before = state(model)
        fpf.observe(torch.rand(16, 4), torch.zeros(16, dtype=torch.int64))
        fpf.finish()
        assert not any(name.startswith("0.") for name in moved(before, model))
        assert "2.running_mean" in moved(before, model)
    assert seen == [False] * 6


def test_unchosen_buffers_of_a_module_stay():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 5)
            self.register_buffer("calls", torch.tensor(0))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            if self.training:
                self.calls += 1
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            return self.fc(x) if self.training else self.fc(x).softmax(1)

    model = Counting()
    before = state(model)
    first = finetune(model, filled(x=torch.rand(64, 4)), ["fc.weight"], steps=3, batch=64).losses[0]
    assert moved(before, model) == {"fc.weight"}
    assert first == pytest.approx(1.6, abs=0.3)  # of logits, as in training mode


@pytest.mark.parametrize("kind", ["new", "old"])
def test_a_spectral_norm_follows_its_finetuned_weight(kind):
    """Its vectors move with the weight: the norm stays 1, also when training goes on."""
    torch.manual_seed(0)
    norm = nn.utils.parametrizations.spectral_norm if kind == "new" else nn.utils.spectral_norm
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), norm(nn.Linear(16, 4)))
    for _ in range(50):
        model(torch.rand(8, 8))
    buffer = Buffer(32, seed=0)
    buffer.add({"x": torch.rand(32, 8), "y": torch.randint(4, (32,))})
    name = "2.parametrizations.weight.original" if kind == "new" else "2.weight_orig"
    vectors = {n: b.clone() for n, b in model.named_buffers()}
    finetune(model, buffer, [name], steps=100, lr=0.5)
    assert all(not torch.equal(b, vectors[n]) for n, b in model.named_buffers())
    model.eval()
    model(torch.rand(8, 8))
    assert torch.linalg.matrix_norm(model[2].weight, 2).item() == pytest.approx(1, abs=0.02)
    finetuned = {n: t.clone() for n, t in model.state_dict().items()}
    finetune(model, buffer, ["0.weight"], steps=2)  # another weight: they stay
    assert all(torch.equal(b, finetuned[n]) for n, b in model.named_buffers())


def test_a_cache_of_inference_mode_is_restored():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)
            self.register_buffer("mask", torch.zeros(0), persistent=False)

        def forward(self, x):
            if len(self.mask) != x.shape[1]:
                self.mask = torch.ones(x.shape[1])
            return self.fc(x * self.mask)

    model = Masked()
    with torch.inference_mode():
        model(torch.rand(2, 6))
    buffer = Buffer(8, seed=0)
    buffer.add({"x": torch.rand(8, 6), "y": torch.randint(3, (8,))})
    finetune(model, buffer, ["fc.weight"], steps=2)
    assert model.mask.tolist() == [1] * 6


def test_a_wrapped_network_is_finetuned_in_training_mode():
    seen = []
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    network[1].register_forward_hook(lambda module, *_: seen.append(module.training))
    model = nn.DataParallel(network)
    model.module.eval()
    buffer = Buffer(8, seed=0)
    buffer.add({"x": torch.rand(8, 4), "y": torch.randint(2, (8,))})
    finetune(model, buffer, ["2.weight"], steps=1)
    assert seen == [True]
    assert (model.training, network.training) == (True, False)

import copy

import pytest
import torch
from torch import nn

from forgetless import networks
from forgetless.compute.flops import forward_flops


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameter_counts_are_those_of_the_paper():
    assert parameters(networks.resnet18(10)) == 11_173_962
    assert parameters(networks.resnet18(9)) == 11_173_449
    assert parameters(networks.mlp(10)) == 89_610


def test_vgg11_has_the_parameters_of_its_docstring():
    assert parameters(networks.vgg11(10)) == 9_750_922


def test_resnet18_imagenet_has_the_papers_multiply_adds():
    # 34.92 T for 100 steps of 32 on Seq-PACS is 6 × 1.819 G per image, with a head for 1,000 classes.
    multiply_adds = forward_flops(networks.resnet18_imagenet(7), torch.empty(1, 3, 224, 224)) / 2
    assert multiply_adds == pytest.approx(1.819e9, rel=0.005)


@pytest.mark.parametrize(
    ("network", "shape", "features"),
    [
        (networks.mlp(7, inputs=64, hidden=(5, 4, 3)), (2, 8, 8), 3),
        (networks.resnet18(7, channels=1, width=4), (2, 1, 28, 28), 32),
        (networks.resnet18_imagenet(7, width=4), (2, 3, 64, 64), 32),
        (networks.vgg11(7, channels=1), (2, 1, 28, 28), 512),
        (networks.vgg11(7), (2, 3, 64, 64), 512),
    ],
)
def test_features_are_the_input_of_the_last_layer(network, shape, features):
    network.eval()
    x = torch.rand(shape)
    seen = network.features(x)
    last = [module for module in network.modules() if isinstance(module, torch.nn.Linear)][-1]
    assert seen.shape == (2, features)
    torch.testing.assert_close(network(x), last(seen))
    assert network(x).shape == (2, 7)


def test_the_mlp_starts_from_xaviers_weights_by_default():
    torch.manual_seed(0)
    model = networks.mlp(10)
    assert model.fc1.weight.abs().max() <= (6 / 884) ** 0.5
    assert model.fc1.weight.std().item() == pytest.approx((2 / 884) ** 0.5, rel=0.02)
    assert not model.fc2.bias.any()
    assert networks.mlp(10, xavier=False).fc1.weight.abs().max() <= 1 / 28


def test_several_passes_in_one_call_equal_several_calls(device):
    torch.manual_seed(0)
    dtype = torch.float64 if device == "cpu" else torch.float32  # the kernels on a GPU take float32
    one = networks.resnet18(4, width=4).to(device, dtype)
    other = copy.deepcopy(one)
    images = [torch.randn(6, 3, 8, 8, device=device, dtype=dtype) * (1 + i) + i for i in range(3)]
    together = one(torch.cat(images), passes=3)
    apart = torch.cat([other(part) for part in images])
    torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-4)
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert int(one.bn1.num_batches_tracked) == 3
    for a, b in zip(
        torch.autograd.grad(together.square().sum(), list(one.parameters())),
        torch.autograd.grad(apart.square().sum(), list(other.parameters())),
        strict=True,
    ):
        assert (a - b).norm() / b.norm() < 1e-3


def test_a_replaced_norm_layer_is_called():
    network = networks.resnet18(4, width=4)
    network.block2[0].shortcut[1] = nn.GroupNorm(2, 8)
    assert network(torch.rand(2, 3, 8, 8)).shape == (2, 4)


def test_vgg_starts_with_a_signal_at_its_end():
    """PyTorch's default weights leave 1 % of it, and Seq-Digits cannot be learned."""
    torch.manual_seed(0)
    logits = networks.vgg11(10)(torch.randn(64, 3, 32, 32))
    assert 0.3 < logits.std(dim=0).mean() < 3

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from forgetless import networks
from forgetless.compute.flops import count
from forgetless.networks.norm import batch_norm
from forgetless.networks.resnet import Shortcut, _Every
from helpers import learner, small_stream


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameter_counts_are_those_of_the_paper():
    assert parameters(networks.resnet18(10)) == 11_173_962
    assert parameters(networks.resnet18(9)) == 11_173_449
    assert parameters(networks.mlp(10)) == 89_610


def test_vgg11_has_the_parameters_its_docstring_says():
    assert parameters(networks.vgg11(10)) == 9_750_922


def test_resnet18_imagenet_form_has_1_819_g_multiply_adds_at_224():
    from forgetless.compute.flops import forward_flops

    # 34.92 T for 100 steps of 32 on Seq-PACS is 6 × 1.819 G an image, with a head for 1,000 classes.
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
def test_features_are_what_the_last_layer_sees(network, shape, features):
    network.eval()
    x = torch.rand(shape)
    seen = network.features(x)
    last = [module for module in network.modules() if isinstance(module, torch.nn.Linear)][-1]
    assert seen.shape == (2, features)
    torch.testing.assert_close(network(x), last(seen))
    assert network(x).shape == (2, 7)


def test_the_mlp_starts_from_xaviers_weights_unless_told_otherwise():
    torch.manual_seed(0)
    model = networks.mlp(10)
    assert model.fc1.weight.abs().max() <= (6 / 884) ** 0.5
    assert model.fc1.weight.std().item() == pytest.approx((2 / 884) ** 0.5, rel=0.02)
    assert not model.fc2.bias.any()
    assert networks.mlp(10, xavier=False).fc1.weight.abs().max() <= 1 / 28


def test_several_passes_in_one_call_are_several_calls(device):
    torch.manual_seed(0)
    dtype = torch.float64 if device == "cpu" else torch.float32  # which our kernels on a GPU are for
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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 1)])
def test_a_1x1_convolution_of_every_other_pixel_is_one_with_a_stride(size, layout):
    torch.manual_seed(0)
    x = torch.randn(3, 4, *size, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    conv = nn.Conv2d(4, 6, 1, 2, bias=False).double()
    wanted, found = conv(x), F.conv2d(_Every.apply(x, 2), conv.weight)
    torch.testing.assert_close(found, wanted)
    along = torch.randn_like(wanted)
    tensors = (x, conv.weight)
    gradients = [torch.autograd.grad(y, tensors, along, retain_graph=True) for y in (found, wanted)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
    assert gradients[0][0].is_contiguous(memory_format=layout)
    assert torch.autograd.gradgradcheck(lambda x: _Every.apply(x, 2).square(), x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="elsewhere it is PyTorch's own")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_shortcut_in_training_is_that_in_evaluation(precision):
    torch.manual_seed(0)
    conv = Shortcut(16, 32, 2).cuda()
    seen = []
    conv.register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(8, 16, 9, 9, device="cuda").to(memory_format=torch.channels_last).requires_grad_()
    results = []
    for training in (True, False):
        conv.train(training)
        with (
            torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"),
            torch.backends.cudnn.flags(allow_tf32=False),
        ):
            y = conv(x)
            results.append([y, *torch.autograd.grad(y.float().square().sum(), (x, conv.weight))])
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() / b.norm() < (1e-5 if precision == "fp32" else 1e-2)
    assert len(seen) == 2
    conv.train()
    assert conv(x[0]).shape == (32, 5, 5)  # one image, which Conv2d takes too


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels run on a GPU only")
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("shape", "passes"),
    [((6, 5, 4, 4), 3), ((2, 40, 5, 7), 1), ((64, 64, 32, 32), 2), ((96, 512, 4, 4), 3), ((33, 64, 64, 64), 1)],
)
def test_the_kernels_of_batch_norm_are_exact(shape, passes, relu, residual):
    """Against PyTorch's layer in double precision, pass by pass: output, gradients, running statistics."""
    torch.manual_seed(0)
    bn = nn.BatchNorm2d(shape[1]).cuda()
    nn.init.normal_(bn.weight)
    nn.init.normal_(bn.bias)
    exact = copy.deepcopy(bn).double()
    x = (3 * torch.randn(shape, device="cuda") + 100).requires_grad_()  # a mean far from 0, where squares would cancel
    added = torch.randn(shape, device="cuda", requires_grad=True) if residual else None
    upstream = torch.randn(shape, device="cuda")
    y = batch_norm(bn, x, relu=relu, residual=added, passes=passes)
    x64 = x.detach().double().requires_grad_()
    added64 = None if added is None else added.detach().double().requires_grad_()
    y64 = torch.cat([exact(part) for part in x64.chunk(passes)])
    y64 = y64 if added64 is None else y64 + added64
    y64 = y64.relu() if relu else y64
    upstream *= (y64.abs() > 1e-3) | (y64 == 0)  # at the kink of the ReLU rounding decides
    upstream *= (y.abs() > 1e-3) | (y == 0)
    y.backward(upstream)
    y64.backward(upstream.double())
    pairs = [(y, y64), (x.grad, x64.grad), (bn.weight.grad, exact.weight.grad), (bn.bias.grad, exact.bias.grad)]
    pairs += [(bn.running_mean, exact.running_mean), (bn.running_var, exact.running_var)]
    if added is not None:
        pairs.append((added.grad, added64.grad))
    for found, wanted in pairs:
        assert (found - wanted).norm() / wanted.norm() < 1e-4
    again = batch_norm(copy.deepcopy(bn), x, relu=relu, residual=added, passes=passes)
    assert torch.equal(y, again)


@pytest.mark.parametrize(
    "frozen", [[], ["fc1.weight"], ["fc1.weight", "fc1.bias", "fc2.weight"], ["fc3.weight", "fc3.bias"]]
)
def test_the_quick_perceptron_gives_the_same_bits(frozen):
    torch.manual_seed(0)
    network = networks.mlp(6, inputs=40)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in frozen)
    x, y = torch.rand(20, 1, 5, 8), torch.randint(6, (20,))
    learned = [p for p in network.parameters() if p.requires_grad]
    quick, plain = network.quick(x), network(x)
    assert torch.equal(quick, plain)
    for a, b in zip(
        torch.autograd.grad(F.cross_entropy(quick, y), learned),
        torch.autograd.grad(F.cross_entropy(plain, y), learned),
        strict=True,
    ):
        assert torch.equal(a, b)
    inputs = torch.rand(3, 40, requires_grad=True)
    assert torch.equal(*(torch.autograd.grad(f(inputs).sum(), inputs)[0] for f in (network.quick, network)))
    assert count(lambda: F.cross_entropy(network.quick(x), y).backward()) == count(
        lambda: F.cross_entropy(network(x), y).backward()
    )


def doubled(gradient):
    return 2 * gradient


def share_layer(network):
    network.fc3 = network.fc2


def tie_weights(network):
    network.fc3.weight = network.fc2.weight


def add_parameter(network):
    network.temperature = nn.Parameter(torch.ones(()))


def add_layer(network):
    network.fc4 = nn.Linear(40, 40)


def hook_weight(network):
    network.fc1.weight.register_hook(doubled)


def hook_network(network):
    network.register_forward_hook(lambda *_: None)


def prune_and_remove(network):
    prune.identity(network.fc1, "weight")
    prune.remove(network.fc1, "weight")


def widen(network):
    network.fc2 = nn.Linear(40, 40)


@pytest.mark.parametrize(
    ("change", "plain"),
    [
        (share_layer, False), (tie_weights, False), (add_parameter, False), (add_layer, False), (hook_weight, False),
        (hook_network, False), (prune_and_remove, False), (widen, True),
    ],
)  # fmt: skip
def test_a_perceptron_that_was_changed_is_trained_as_torch_does(change, plain):
    """Whatever was changed, a step gives the weights that autograd and a plain call give."""
    torch.manual_seed(0)
    network = networks.mlp(40, inputs=40, hidden=(40, 40))
    change(network)
    twin = copy.deepcopy(network)
    if change is hook_weight:  # which copies leave behind
        hook_weight(twin)
    assert network.plain is plain
    x, y = torch.rand(20, 40), torch.randint(40, (20,))
    learner(network, small_stream(), lr=0.1).fit(x, y)
    parameters = list(twin.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(twin(x), y), parameters, allow_unused=True)
    for found, start, gradient in zip(network.parameters(), parameters, gradients, strict=True):
        torch.testing.assert_close(found, start if gradient is None else start - 0.1 * gradient)


def test_a_replaced_norm_layer_is_called():
    network = networks.resnet18(4, width=4)
    network.block2[0].shortcut[1] = nn.GroupNorm(2, 8)
    assert network(torch.rand(2, 3, 8, 8)).shape == (2, 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels run on a GPU only")
def test_nan_goes_through_the_kernels_of_batch_norm():
    x = torch.full((4, 8, 2, 2), torch.nan, device="cuda")
    assert batch_norm(nn.BatchNorm2d(8).cuda(), x, relu=True).isnan().all()


def test_vgg_starts_with_a_signal_at_its_end():
    """With torch's own initial weights it was 0.01 of this, and Seq-Digits could not be learned."""
    torch.manual_seed(0)
    logits = networks.vgg11(10)(torch.randn(64, 3, 32, 32))
    assert 0.3 < logits.std(dim=0).mean() < 3

import pytest
import torch

from forgetless import networks


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameter_counts_are_those_of_the_paper():
    assert parameters(networks.resnet18(10)) == 11_173_962
    assert parameters(networks.resnet18(9)) == 11_173_449
    assert parameters(networks.mlp(10)) == 89_610


def test_vgg11_has_the_parameters_its_docstring_says():
    assert parameters(networks.vgg11(10)) == 9_750_922


def test_resnet18_imagenet_form_has_1_819_g_multiply_adds_at_224():
    from forgetless.flops import forward_flops

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

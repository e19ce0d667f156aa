import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

import forgetless
from forgetless import networks
from forgetless.compute.modules import is_norm
from forgetless.repair.groups import float_tensors, groups
from helpers import CNN, Transformer


class Stage(nn.Module):
    """The names and shapes of torchvision's ResNet, whose layers are stages of basic blocks."""

    def __init__(self):
        super().__init__()
        block = lambda: networks.resnet.BasicBlock(4, 4, 1)  # noqa: E731
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.layer1, self.layer2 = nn.Sequential(block(), block()), nn.Sequential(block(), block())
        self.layer3, self.layer4 = nn.Sequential(block(), block()), nn.Sequential(block(), block())
        self.fc = nn.Linear(4, 10)


class LanguageModel(nn.Module):
    """Embedding and output layer share one weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.position = nn.Embedding(8, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2, enable_nested_tensor=False)
        self.lm_head = nn.Linear(16, 20, bias=False)
        self.lm_head.weight = self.embed.weight


class RMSNorm(nn.Module):
    """A user's own normalisation, known by its name."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))


def parameter_counts(model, parts):
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return {group: sum(sizes.get(name, 0) for name in names) for group, names in parts.items()}


def assert_partition(model, parts):
    names = [name for group in parts.values() for name in group]
    assert len(names) == len(set(names)), "a tensor is in two groups"
    assert set(names) == set(float_tensors(forgetless.repair.groups.unwrap(model))), "a tensor is in no group"
    tensors = dict(model.named_parameters())
    assert sum(parameter_counts(model, parts).values()) == sum(tensor.numel() for tensor in tensors.values())


def share(model, *chosen):
    size = parameter_counts(model, groups(model))
    return 100 * sum(size[group] for group in chosen) / sum(size.values())


def test_resnet18_groups_are_the_papers():
    parts = groups(networks.resnet18(10))
    assert list(parts) == ["conv1", "block1", "block2", "block3", "block4", "bn.affine", "bn.stats", "fc"]
    size = parameter_counts(networks.resnet18(10), parts)
    assert (size["bn.affine"], size["bn.stats"], size["fc"], size["conv1"]) == (9600, 0, 5130, 1728)
    assert size["block3"] == 2_097_152
    assert size["block4"] == 8_388_608
    assert len(parts["bn.affine"]) == len(parts["bn.stats"]) == 40
    assert "block2.0.shortcut.0.weight" in parts["block2"]


def test_resnet18_shares_of_parameters_are_the_papers():
    nine, ten = networks.resnet18(9), networks.resnet18(10)
    basis = ("bn.affine", "bn.stats", "fc", "conv1")
    assert sum(parameter_counts(ten, groups(ten)).values()) == 11_173_962
    assert round(share(nine, "bn.affine", "bn.stats", "fc"), 3) == 0.127
    assert round(share(nine, *basis, "block3"), 2) == 18.91
    assert round(share(nine, *basis, "block4"), 2) == 75.22
    assert round(share(nine, *basis, "block1", "block2", "block3"), 2) == 24.92
    assert round(share(ten, *basis), 3) == 0.147


def test_mlp_shares_of_parameters_are_the_papers():
    model = networks.mlp(10)
    assert list(groups(model)) == ["fc1", "fc2", "fc3"]
    assert sum(parameter_counts(model, groups(model)).values()) == 89_610
    assert round(share(model, "fc3"), 2) == 1.13
    assert round(share(model, "fc2", "fc3"), 2) == 12.40


def test_vgg11_groups():
    parts = groups(networks.vgg11(10))
    assert list(parts) == ["conv1", "block2", "block3", "block4", "block5", "fc1", "fc2", "fc3"]
    assert [len(names) for names in parts.values()] == [2, 2, 4, 4, 4, 2, 2, 2]


def test_derived_groups_of_a_plain_cnn():
    assert groups(CNN()) == {
        "stem": ("conv1.weight", "conv1.bias"),
        "block1": ("conv2.weight", "conv2.bias"),
        "block2": ("conv3.weight", "conv3.bias"),
        "head": ("fc.weight", "fc.bias"),
    }


def test_derived_groups_of_a_transformer():
    parts = groups(Transformer())
    assert list(parts) == ["stem", "block1", "block2", "block3", "norm.affine", "head"]
    assert set(parts["stem"]) == {"position", "embed.weight", "embed.bias"}
    assert all(name.startswith("encoder.layers.1.") for name in parts["block2"])
    assert len(parts["norm.affine"]) == 12


def test_derived_groups_take_stages_before_their_blocks():
    parts = groups(Stage())
    assert list(parts) == ["stem", "block1", "block2", "block3", "block4", "norm.affine", "norm.stats", "head"]
    assert parts["stem"] == ("conv1.weight", "conv1.bias")
    assert all(name.startswith("layer2.") for name in parts["block2"])


def test_a_tied_weight_belongs_to_the_head_once():
    parts = groups(LanguageModel())
    assert parts["head"] == ("embed.weight",)
    assert parts["stem"] == ("position.weight",)


def test_a_normalisation_is_recognised_by_its_class_name():
    model = nn.Sequential(nn.Linear(3, 4), RMSNorm(), nn.Linear(4, 4), nn.Linear(4, 2))
    assert groups(model)["norm.affine"] == ("1.scale",)


@pytest.mark.parametrize("frozen", [False, True])
def test_an_average_or_frozen_copy_has_no_head(frozen):
    model = nn.Module()
    model.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    if frozen:
        model.teacher = copy.deepcopy(model.net).requires_grad_(False)
    else:
        model.average = AveragedModel(model.net)
    assert groups(model)["head"] == ("net.4.weight", "net.4.bias")


def test_a_head_that_is_frozen_is_the_head():
    model = nn.Sequential(OrderedDict(body=nn.Linear(3, 4), act=nn.ReLU(), head=nn.Sequential(nn.Linear(4, 2))))
    model.head.requires_grad_(False)
    assert groups(model)["head"] == ("head.0.weight", "head.0.bias")


def test_other_float_buffers_are_a_group():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model.register_buffer("table", torch.zeros(3))
    parts = groups(model)
    assert parts["buffers"] == ("table",)
    assert parts["norm.stats"] == ("1.running_mean", "1.running_var")
    assert "1.num_batches_tracked" not in [name for names in parts.values() for name in names]


@pytest.mark.parametrize(
    "model",
    [
        networks.mlp(3, hidden=(5,)),
        networks.resnet18(3, width=4),
        networks.resnet18_imagenet(3, width=4),
        networks.vgg11(3),
        CNN(),
        Transformer(2),
        Stage(),
        LanguageModel(),
        nn.Linear(3, 2),
        nn.Sequential(nn.Sequential(nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4)), nn.Flatten(), nn.LazyLinear(2)),
        nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))),
        nn.ModuleDict({"body": CNN(), "head": nn.Linear(10, 5)}),
    ],
    ids=lambda model: type(model).__name__,
)
def test_groups_are_a_partition(model):
    if isinstance(model, nn.Sequential) and isinstance(model[-1], nn.LazyLinear):
        with pytest.raises(ValueError, match=r"2\.weight has no shape yet: run one batch"):
            groups(model)
        model(torch.zeros(1, 3, 5))
    assert_partition(model, groups(model))


def test_wrapped_networks_have_the_names_of_the_network_itself():
    model = CNN()
    assert groups(torch.compile(model)) == groups(nn.DataParallel(model)) == groups(model)


def test_an_unrecognisable_head_must_be_named():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.guess = nn.Linear(4, 2)
            self.body = nn.LSTM(3, 4)

    with pytest.raises(ValueError, match="Odd has no recognisable head.*head='…', or give the groups"):
        groups(Odd())
    parts = groups(Odd(), head="guess")
    assert parts["head"] == ("guess.weight", "guess.bias")
    assert_partition(Odd(), parts)
    with pytest.raises(ValueError, match="head='fc' is not a module with parameters of Odd"):
        groups(Odd(), head="fc")


def test_a_network_without_tensors_is_refused():
    with pytest.raises(ValueError, match="ReLU has neither parameters nor float buffers"):
        groups(nn.ReLU())


def test_a_body_of_one_layer_is_one_group():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert groups(model) == {"stem": ("0.weight", "0.bias"), "head": ("2.weight", "2.bias")}


def test_a_layer_with_a_parametrized_weight_is_one_layer():
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)),
        nn.Linear(4, 4),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
    )
    parts = groups(model)
    assert list(parts) == ["stem", "block1", "head", "buffers"]
    assert all(name.startswith("0.") for name in parts["stem"] + parts["buffers"])
    assert len(parts["head"]) == 3
    assert_partition(model, parts)


def adapted(model, **settings):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, **settings))


@pytest.mark.parametrize("layers", [2, 3])
def test_a_layer_with_adapters_is_one_layer(layers):
    model = adapted(Transformer(layers), target_modules=["linear1", "linear2", "embed"], modules_to_save=["head"])
    parts = groups(model)
    blocks = [f"block{number + 1}" for number in range(layers)]
    assert list(parts) == ["stem", *blocks, "norm.affine", "head"]
    prefix = "base_model.model."
    assert all(name.startswith(f"{prefix}encoder.layers.1.") for name in parts["block2"])
    assert f"{prefix}encoder.layers.1.linear1.lora_A.default.weight" in parts["block2"]
    assert f"{prefix}embed.lora_B.default.weight" in parts["stem"]
    assert parts["head"] == tuple(
        f"{prefix}head.{kind}.{name}"
        for kind in ("original_module", "modules_to_save.default")
        for name in ("weight", "bias")
    )
    assert_partition(model, parts)


def test_the_head_may_have_adapters_itself():
    parts = groups(adapted(CNN(), target_modules=["fc"]))
    prefix = "base_model.model.fc"
    assert set(parts["head"]) == {
        f"{prefix}.base_layer.weight", f"{prefix}.base_layer.bias", f"{prefix}.lora_A.default.weight",
        f"{prefix}.lora_B.default.weight",
    }  # fmt: skip
    assert list(parts) == ["stem", "block1", "block2", "head"]


def test_a_usual_name_counts_inside_a_wrapper():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.conv, self.lstm = nn.Linear(4, 2), nn.Conv2d(3, 4, 3), nn.LSTM(4, 4)

    assert groups(Net())["head"] == ("fc.weight", "fc.bias")
    assert groups(nn.Sequential(Net()))["head"] == ("0.fc.weight", "0.fc.bias")
    assert "base_model.model.fc.weight" in groups(adapted(Net(), target_modules=["conv"]))["head"]


def test_the_last_of_several_usual_names_is_the_head():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 2)

    assert groups(Net())["head"] == ("out.weight", "out.bias")


def test_a_layer_inside_a_repeated_one_is_no_head():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    with pytest.raises(ValueError, match="TransformerEncoder has no recognisable head"):
        groups(encoder)


def test_a_larger_subclass_gets_derived_groups():
    model = networks.resnet18(4, width=4)
    model.projection = nn.Linear(32, 8)  # of the features
    parts = groups(model)
    assert_partition(model, parts)
    assert parts["head"] == ("fc.weight", "fc.bias")


LAYERS = {
    "linear": lambda: nn.Linear(4, 4),
    "conv": lambda: nn.Conv1d(4, 4, 1),
    "norm": lambda: nn.BatchNorm1d(4),
    "layer norm": lambda: nn.LayerNorm(4),
    "embedding": lambda: nn.Embedding(3, 4),
    "relu": nn.ReLU,
}
NETWORKS = st.recursive(
    st.sampled_from(sorted(LAYERS)), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=12
)


def make(described):
    return LAYERS[described]() if isinstance(described, str) else nn.Sequential(*map(make, described))


@settings(max_examples=100, deadline=None)
@given(NETWORKS)
def test_groups_of_any_network_are_a_partition(described):
    network = nn.Sequential(make(described), nn.Linear(4, 2))
    names = [name for group in forgetless.groups(network).values() for name in group]
    tensors = [*network.named_parameters(), *network.named_buffers()]
    assert sorted(names) == sorted(name for name, tensor in tensors if tensor.is_floating_point())


class ActivatedNorm(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: a batch norm with modules inside."""

    def __init__(self, channels):
        super().__init__(channels)
        self.act = nn.ReLU()


class BN(nn.BatchNorm2d):
    """One whose name does not say what it is."""


class NormedLinear(nn.Module):
    """A cosine classifier, which is no normalisation layer."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(inputs, outputs))


def test_a_name_alone_makes_no_normalisation():
    assert all(map(is_norm, [ActivatedNorm(3), BN(3), nn.GroupNorm(1, 3), nn.RMSNorm(3), nn.LayerNorm([2, 3])]))
    assert not any(
        map(is_norm, [NormedLinear(3, 4), nn.Linear(3, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))])
    )
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3), ActivatedNorm(3), nn.Conv2d(3, 3, 3), BN(3), nn.Flatten(), nn.Linear(48, 2)
    )
    found = groups(network)
    assert found["norm.stats"] == ("1.running_mean", "1.running_var", "3.running_mean", "3.running_var")
    assert found["norm.affine"] == ("1.weight", "1.bias", "3.weight", "3.bias")


class Middle(nn.Module):
    """Its ``fc`` feeds another linear layer."""

    def __init__(self, outputs=32):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(144, outputs)
        self.cls = nn.Linear(32, 10)


def test_a_middle_layer_named_like_a_head_is_none():
    assert groups(Middle())["head"] == ("cls.weight", "cls.bias")
    assert groups(Middle(10))["head"] == ("fc.weight", "fc.bias")  # which the other one does not follow


def test_a_layer_that_feeds_a_matrix_is_no_head():
    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.prototypes = nn.Linear(8, 16), nn.Parameter(torch.randn(4, 16))

    with pytest.raises(ValueError, match="Cosine has no recognisable head"):
        groups(Cosine())
    assert groups(Cosine(), head="features")["head"] == ("features.weight", "features.bias")

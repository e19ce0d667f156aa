import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless import groups, networks, only
from forgetless.compute import flops

IMAGE = torch.empty(1, 3, 32, 32)


def names(model, *chosen):
    return [name for group in chosen for name in groups(model)[group]]


def test_training_resnet18_costs_six_flops_per_multiply_add():
    counted = flops.training_flops(networks.resnet18(10), IMAGE)
    assert counted == pytest.approx(6 * 0.555e9, rel=0.01)


def test_cost_grows_with_the_batch():
    model = networks.mlp(10)
    assert flops.training_flops(model, torch.empty(32, 784)) == 32 * flops.training_flops(model, torch.empty(1, 784))


def test_finetuning_the_head_costs_no_backward_through_the_body():
    model = networks.resnet18(10)
    with only(model, names(model, "fc")):
        backward = flops.training_flops(model, IMAGE) - flops.forward_flops(model, IMAGE)
    assert backward == 2 * 512 * 10  # the weight gradient of the last layer, nothing else


def test_a_frozen_layer_only_passes_gradients_on():
    model = networks.mlp(10)
    with only(model, names(model, "fc1")):
        counted = flops.training_flops(model, torch.empty(1, 784))
    forward = 2 * (784 * 100 + 100 * 100 + 100 * 10)
    assert counted == forward + 2 * (784 * 100) + 2 * (100 * 100) + 2 * (100 * 10)


def test_a_frozen_block_costs_no_weight_gradients():
    model = networks.resnet18(10)
    full = flops.training_flops(model, IMAGE)
    with only(model, [name for name in names(model, *groups(model)) if name not in names(model, "block4")]):
        partial = flops.training_flops(model, IMAGE)
    # block4 at 4×4: convolutions 256→512, 512→512 three times, and the 1×1 shortcut 256→512
    weight_gradients = 2 * 16 * (9 * 256 * 512 + 3 * 9 * 512 * 512 + 256 * 512)
    assert full - partial == weight_gradients


def test_fifty_epochs_of_seq_cifar10_cost_the_papers_flops():
    images = 50 * 50_000
    one = flops.training_flops(networks.resnet18(10), IMAGE)
    assert 2 * one * images == pytest.approx(16_726e12, rel=0.01)  # DER: the batch and one replayed batch
    assert 3 * one * images == pytest.approx(25_089e12, rel=0.01)  # DER++: the batch and two


def test_one_epoch_of_rotated_mnist_costs_the_papers_flops():
    images = 20 * 60_000
    one = 3 * flops.forward_flops(networks.mlp(10), torch.empty(1, 784))
    assert 2 * one * images == pytest.approx(1.29e12, rel=0.01)
    assert 3 * one * images == pytest.approx(1.93e12, rel=0.01)


def test_the_mlp_computes_no_input_gradient():
    one = flops.training_flops(networks.mlp(10), torch.empty(1, 784))
    assert one == 4 * 784 * 100 + 6 * (100 * 100 + 100 * 10)


@pytest.mark.parametrize("groups_", [1, 2, 4])
def test_each_gradient_of_a_grouped_convolution_costs_its_forward(groups_):
    layer = nn.Conv2d(8, 8, 3, padding=1, groups=groups_)
    x = torch.rand(2, 8, 5, 5, requires_grad=True)
    forward = 2 * 2 * 25 * 8 * (8 // groups_) * 9
    assert flops.count(lambda: layer(x)) == forward
    assert flops.count(lambda: layer(x).sum().backward()) == 3 * forward


def test_a_transposed_convolution_counts_by_its_input():
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2)
    x = torch.rand(2, 4, 5, 5, requires_grad=True)
    assert flops.count(lambda: layer(x).sum().backward()) == 3 * 2 * 2 * 25 * 4 * 6 * 9


def test_attention_counts_on_this_device(device):
    q = torch.rand(2, 3, 5, 8, device=device, requires_grad=True)
    product = 2 * (2 * 3) * 5 * 5 * 8  # one product of (5, 8) with (8, 5) for each head
    assert flops.count(lambda: F.scaled_dot_product_attention(q, q, q)) == 2 * product
    # backward: the scores once more, and two products for each of the two forward ones
    assert flops.count(lambda: F.scaled_dot_product_attention(q, q, q).sum().backward()) == 7 * product


def test_a_transformer_in_evaluation_mode_is_counted():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        counted = flops.count(lambda: layer(torch.rand(2, 4, 16)))
    linear = 2 * 8 * (16 * 48 + 16 * 16 + 16 * 32 + 32 * 16)
    assert counted == linear + 2 * 2 * (2 * 2) * 4 * 4 * 8


class Recurrent(nn.Module):
    def __init__(self, kind, **given):
        super().__init__()
        self.body = kind(8, 16, batch_first=True, **given)

    def forward(self, x):
        return self.body(x)[0]


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_recurrent_layers_count_both_matrices_per_element(kind, gates):
    forward = 2 * (10 * 7) * gates * 16 * (8 + 16)  # ten sequences of seven
    assert flops.forward_flops(Recurrent(kind), torch.rand(10, 7, 8)) == forward
    both = Recurrent(kind, num_layers=2, bidirectional=True)
    second = 2 * (10 * 7) * gates * 16 * (32 + 16)  # it sees both directions of the first
    assert flops.forward_flops(both, torch.rand(10, 7, 8)) == 2 * (forward + second)


def test_an_lstms_gradients_cost_twice_its_forward(onednn_on):
    model, x = Recurrent(nn.LSTM), torch.rand(10, 7, 8)
    assert flops.training_flops(model, x) == 3 * flops.forward_flops(model, x)


def test_a_matrix_times_a_vector_counts():
    assert flops.count(lambda: torch.rand(3, 5) @ torch.rand(5)) == 2 * 3 * 5


def test_counting_leaves_the_network_alone():
    model = networks.resnet18(10, width=4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flops.training_flops(model, IMAGE)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())

"""The Triton kernels of batch norm, against PyTorch's layer."""

import copy

import pytest
import torch
from torch import nn

from forgetless.networks.norm import batch_norm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels run on a GPU only")


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("shape", "passes"),
    [((6, 5, 4, 4), 3), ((2, 40, 5, 7), 1), ((64, 64, 32, 32), 2), ((96, 512, 4, 4), 3), ((33, 64, 64, 64), 1)],
)
def test_the_kernels_are_exact(shape, passes, relu, residual):
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


def test_nan_passes_through_the_kernels():
    x = torch.full((4, 8, 2, 2), torch.nan, device="cuda")
    assert batch_norm(nn.BatchNorm2d(8).cuda(), x, relu=True).isnan().all()

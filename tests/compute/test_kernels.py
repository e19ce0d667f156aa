import torch

from forgetless.compute import kernels


def test_a_cpu_uses_no_kernels():
    assert not kernels.can_serve(torch.zeros(3))

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a GPU only")


def test_the_kernel_returns_the_next_rows_and_labels():
    from forgetless.compute.kernels import gather

    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(300, generator=generator).cuda()
    labels = torch.randint(10, (300,), generator=generator).cuda()
    position = torch.zeros((), dtype=torch.int64, device="cuda")
    start = 0
    for size in (1, 10, 32, 100, 157):
        rows, y = gather.take(order, position, labels, size)
        assert torch.equal(rows, order[start : start + size])
        assert torch.equal(y, labels[rows])
        start += size
        assert int(position) == start

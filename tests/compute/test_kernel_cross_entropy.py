import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a GPU only")


@pytest.mark.parametrize(("batch", "classes"), [(1, 2), (10, 10), (20, 10), (32, 200), (64, 9), (77, 100)])
def test_the_kernel_gives_the_loss_and_gradient_of_torch(batch, classes):
    from forgetless.compute.kernels import cross_entropy as cross_entropy_cuda

    generator = torch.Generator().manual_seed(batch)
    logits = (10 * torch.randn(batch, classes, generator=generator)).cuda().requires_grad_()
    y = torch.randint(classes, (batch,), generator=generator).cuda()
    y[1::3] = -100  # no label
    assert cross_entropy_cuda.serves(logits, y)
    loss, gradient = cross_entropy_cuda.cross_entropy(logits, y)
    expected = F.cross_entropy(logits, y)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0], rtol=1e-5, atol=1e-7)


def test_a_loss_that_is_not_finite_stays_so():
    from forgetless.compute.kernels import cross_entropy as cross_entropy_cuda

    y = torch.tensor([1, 0], device="cuda")
    logits = torch.tensor([[0.0, torch.nan], [1.0, 2.0]], device="cuda")
    assert cross_entropy_cuda.cross_entropy(logits, y)[0].isnan()
    logits = torch.tensor([[0.0, -torch.inf], [1.0, 2.0]], device="cuda")
    assert cross_entropy_cuda.cross_entropy(logits, y)[0] == torch.inf


def test_what_the_kernel_is_not_for():
    from forgetless.compute.kernels.cross_entropy import serves

    y = torch.zeros(4, dtype=torch.int64)
    assert serves(torch.zeros(4, 10), y)
    assert not serves(torch.zeros(4, 10, 2), y)  # a score of each pixel
    assert not serves(torch.zeros(4, 10, dtype=torch.float64), y)
    assert not serves(torch.zeros(4, 10), torch.zeros(4, 10))  # probabilities
    assert not serves(torch.zeros(4, 5000), y)

import pytest
import torch

from forgetless import networks
from forgetless.compute.descent import descend
from forgetless.compute.engine import Engine
from forgetless.methods.learner import Learner
from helpers import image_stream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a GPU only")


def test_the_kernel_steps_as_torch_does():
    """Tensors of all sizes, more of them than one launch takes, some in channels-last and some transposed."""
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(1, 1), (3, 5), (64, 64), (4096, 1), (4097, 3), (300, 700)] * 6
    parameters = [torch.randn(shape, generator=generator, device="cuda") for shape in shapes]
    for shape in ((64, 3, 3, 3), (128, 64, 1, 1), (512, 256, 3, 3)):
        made = torch.randn(shape, generator=generator, device="cuda")
        parameters.append(made.to(memory_format=torch.channels_last))
    gradients = [torch.randn(p.shape, generator=generator, device="cuda").bfloat16() for p in parameters]
    gradients[2] = gradients[2].t()
    parameters.append(torch.ones(5, device="cuda"))
    gradients.append(torch.full((5,), 2.0, device="cuda"))  # as its parameter: not for the kernel
    wanted = [p - 0.3 * g.float() for p, g in zip(parameters, gradients, strict=True)]
    descend(parameters, gradients, 0.3)
    for found, expected in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_fit_in_bf16_steps_along_the_gradients_that_autograd_gives():
    torch.manual_seed(0)
    stream = image_stream()
    network = networks.resnet18(4, width=16).to("cuda", memory_format=torch.channels_last)
    learner = Learner(
        network, stream, lr=0.1, batch=8, replay=8, weight_decay=0.0, buffer=None,
        engine=Engine("cuda", precision="bf16"), seed=0,
    )  # fmt: skip
    x = learner.plain(stream.tasks[0].train.x[:32])
    y = stream.tasks[0].train.y[:32].cuda()
    before = [p.detach().clone() for p in learner.parameters]
    with learner.engine.active():
        gradients = learner.gradients(torch.nn.functional.cross_entropy(learner.forward(x), y))
        learner.fit(x, y)
        learner.engine.synchronize()
    for p, old, g in zip(learner.parameters, before, gradients, strict=True):
        assert (p - (old - 0.1 * g)).norm() <= 0.02 * (0.1 * g).norm()

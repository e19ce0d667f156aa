"""Started by tests/repair/test_bfloat16.py: prints the claims about bfloat16 once they hold."""

import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).parents[1] / "repair"), str(Path(__file__).parents[1])]

from loops import accuracy, filled, make, run, shifting  # noqa: E402

from forgetless import FPF, finetune, networks  # noqa: E402


def autocast(device: str) -> None:
    """An FPF with autocast repairs a network that trains with autocast."""
    model, shape = make("mlp")
    model.to(device)
    fpf = FPF(model, 64, 60, 50, 0.1, distill=0.1, autocast=torch.bfloat16)
    run(model, shape, fpf, device=device, autocast=torch.bfloat16, announced=True)
    assert fpf.buffer["logits"].dtype == torch.bfloat16
    assert accuracy(model, shape, device) > 0.9


def users_autocast() -> None:
    """Inside a user's autocast the cached casts of the weights are not stale."""
    torch.manual_seed(0)
    model = networks.mlp(5, inputs=4)
    buffer = filled(x=torch.eye(4).repeat(16, 1), y=torch.arange(4).repeat(16))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.rand(2, 4))  # fills the cache of casts
        first, *_, last = finetune(model, buffer, [n for n, _ in model.named_parameters()], steps=100, lr=0.5).losses
    assert last < first / 4


def parameters() -> None:
    """A network whose parameters are in bfloat16 is repaired."""
    model, shape = make("mlp")
    model.to(torch.bfloat16)
    fpf = FPF(model, 64, lr=0.1, steps=100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(shifting(shape)):
        if step == 60:
            fpf.boundary()
        optimizer.zero_grad()
        F.cross_entropy(model(x.bfloat16()), y).backward()
        optimizer.step()
        fpf.observe(x.bfloat16(), y)
    fpf.finish()
    right = torch.cat([model(x.bfloat16()).argmax(1) == y for x, y in shifting(shape, steps=5)])
    assert right.float().mean() > 0.9


for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
    autocast(device)
users_autocast()
parameters()
sys.stdout.write("autocast users_autocast parameters")

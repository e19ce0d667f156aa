"""What real training needs, each as a loop on two small tasks: the first task's loss, forgotten and repaired.

Every loop is what a user would write. It is repaired within a budget and, once, on the paper's schedule.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless import FPF


@pytest.fixture(params=[{}, {"steps": 100, "lr": 0.2}], ids=["budget", "schedule"])
def forget_and_repair(request):
    """Return a function that trains without and with repairs, and returns both losses of the old examples."""

    def train(model, batches, measure, old, *, lr=0.1, **given):
        start = copy.deepcopy(model.state_dict())
        losses = []
        for repaired in (False, True):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            fpf = FPF(model, groups="all", **request.param, **given)
            for x, y in batches:
                optimizer.zero_grad()
                measure(x, y).backward()
                optimizer.step()
                if repaired:
                    fpf.observe(x, y)
            with torch.no_grad():
                if repaired:
                    assert fpf.finish() is not None
                losses.append(measure(*old).item())
        return losses

    return train


class TwoHeads(nn.Module):
    """A network that tells two properties of an input at once."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.heads = nn.ModuleDict({"colour": nn.Linear(32, 4), "size": nn.Linear(32, 3)})

    def forward(self, x):
        features = self.body(x)
        return {name: head(features) for name, head in self.heads.items()}


def properties(task, count=32):
    """Return inputs with a colour and a size; each task has two colours, and the sizes are known in half of all."""
    colour, size = torch.randint(2, (count,)) + 2 * task, torch.randint(3, (count,))
    x = torch.cat([F.one_hot(colour, 4), 2 * F.one_hot(size, 3), torch.zeros(count, 1)], 1) + 0.3 * torch.randn(
        count, 8
    )
    size[: count // 2] = -100
    return x, {"colour": colour, "size": size}


def test_several_heads_with_mappings_of_outputs_and_labels(forget_and_repair):
    torch.manual_seed(0)
    model = TwoHeads()

    def loss(x, y):
        return sum(F.cross_entropy(logits, y[name]) for name, logits in model(x).items())

    batches = [properties(task) for task in (0, 1) for _ in range(60)]
    before, after = forget_and_repair(model, batches, loss, properties(0, 500), head="heads.size")
    assert before > 2
    assert after < before / 2


def test_a_loss_over_mappings(forget_and_repair):
    torch.manual_seed(0)
    model = TwoHeads()

    def loss(output, y):
        known = y["size"] != -100
        return F.cross_entropy(output["colour"], y["colour"]) + F.mse_loss(
            output["size"][known, 0], y["size"][known].float()
        )

    batches = [properties(task) for task in (0, 1) for _ in range(60)]
    before, after = forget_and_repair(
        model, batches, lambda x, y: loss(model(x), y), properties(0, 500), lr=0.05, head="heads.size", loss=loss
    )
    assert before > 1.5
    assert after < before / 2


class UNet(nn.Module):
    """One scale down, one up, and a skip connection."""

    def __init__(self, classes=3):
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.up = nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        top = self.down(x).relu()
        middle = self.norm(self.middle(F.max_pool2d(top, 2))).relu()
        return self.head(torch.cat([top, self.up(middle)], 1))


def squares(task, count=16):
    """Return images of bright (task 0) or dark (task 1) squares, and the class of each pixel; the border has none."""
    x, y = 0.1 * torch.randn(count, 1, 8, 8), torch.zeros(count, 8, 8, dtype=torch.int64)
    for image, labels, (row, column) in zip(x, y, torch.randint(1, 5, (count, 2)).tolist(), strict=True):
        image[:, row : row + 3, column : column + 3] += -1 if task else 1
        labels[row : row + 3, column : column + 3] = task + 1
    y[:, 0] = -100
    return x, y


def test_per_pixel_labels(forget_and_repair):
    torch.manual_seed(0)
    model = UNet()
    batches = [squares(task) for task in (0, 1) for _ in range(60)]
    before, after = forget_and_repair(
        model, batches, lambda x, y: F.cross_entropy(model(x), y), squares(0, 64), lr=0.2, head="head"
    )
    assert before > 0.5
    assert after < before / 2


def test_regression_with_drift(forget_and_repair):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))

    def window(centre, count=32):
        x = centre + 0.3 * torch.randn(count, 1)
        return x, torch.cat([torch.sin(2 * x), torch.cos(2 * x)], 1)

    def loss(x, y):
        return F.mse_loss(model(x), y)

    batches = [window(step / 100 - 1.5) for step in range(300)]
    before, after = forget_and_repair(model, batches, loss, window(-1.5, 500), loss=F.mse_loss)
    assert before > 0.1
    assert after < before / 2


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_examples_without_a_label_are_skipped(kind, forget_and_repair):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 4))
    loss, missing = {"classes": (None, -100), "numbers": (F.mse_loss, torch.nan)}[kind]

    def batch(task, labels=True):
        y = torch.randint(2, (32,)) + 2 * task
        x = 2 * F.one_hot(y, 4) + 0.3 * torch.randn(32, 4)
        y = y if loss is None else F.one_hot(y, 4).float()
        if not labels:
            y[:] = missing
            x += 100 * torch.randn_like(x)  # one of them in a repair would show
        return x, y

    def trained(x, y):
        known = y.reshape(32, -1)[:, 0] != missing if loss is None else ~y[:, 0].isnan()
        if not known.any():
            return 0 * model(x[:1]).sum()
        return (loss or F.cross_entropy)(model(x[known]), y[known])

    batches = [batch(task, labels=step % 3 > 0) for task in (0, 1) for step in range(60)]
    before, after = forget_and_repair(model, batches, trained, batch(0), loss=loss)
    assert after < before / 2


class LanguageModel(nn.Module):
    """A next-token model that shifts the labels in its own loss, as Hugging Face's do."""

    def __init__(self, tokens=12):
        super().__init__()
        self.embedding, self.head = nn.Embedding(tokens, 16), nn.Linear(16, tokens)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embedding(input_ids).tanh())
        loss = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def counting(task, length=12):
    """Return sequences that count up by 1 (task 0) or by 5 (task 1), and themselves as labels."""
    tokens = (torch.randint(12, (16, 1)) + torch.arange(length) * (1 if task == 0 else 5)) % 12
    return {"input_ids": tokens}, tokens.clone()


def gpt2():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 12, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


@pytest.mark.parametrize(("make", "lr"), [(LanguageModel, 1.0), (gpt2, 0.3)])
def test_the_models_own_loss(make, lr, forget_and_repair):
    torch.manual_seed(0)
    model = make()

    def loss(x, y):
        output = model(**x, labels=y)
        return output["loss"]

    batches = [counting(task) for task in (0, 1) for _ in range(40)]
    before, after = forget_and_repair(model, batches, loss, counting(0), lr=lr, loss="model")
    assert before > 2
    assert after < before / 2

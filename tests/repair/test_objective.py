from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless import Buffer
from forgetless.memory.batch import pack, unpack
from forgetless.memory.labels import check_labels, class_axis, labelled, with_labels
from forgetless.repair.objective import Objective


@dataclass
class Output:
    """What a user's model may return."""

    logits: Any = None
    loss: Any = None


def test_mappings_become_columns_and_return():
    x, y = {"a": torch.rand(3, 2), "b": torch.rand(3)}, {"colour": torch.arange(3), "size": torch.rand(3, 4)}
    rows = pack(x, y)
    assert set(rows) == {"x.a", "x.b", "y.colour", "y.size"}
    assert unpack(rows) == x
    assert unpack(rows, "y") == y
    assert unpack(pack(x["a"], y["size"]), "y") is y["size"]


@pytest.mark.parametrize(
    ("logits", "y", "axis"),
    [
        ((6, 4), (6,), 1),
        ((6, 4, 5), (6, 5), 1),  # (batch, classes, time)
        ((6, 5, 4), (6, 5), 2),  # (batch, time, classes)
        ((6, 5, 5), (6, 5), 2),  # both fit: a language model
        ((6, 4, 8, 9), (6, 8, 9), 1),  # an image
        ((6, 8, 9, 4), (6, 8, 9), 3),
        ((6, 8, 8, 8), (6, 8, 8), 1),  # both fit: an image
        ((5, 5, 5, 5, 5), (5, 5, 5, 5), 1),
    ],
)
def test_the_classes_are_on_the_axis_that_fits(logits, y, axis):
    z, labels = torch.randn(logits), torch.randint(4, y)
    assert class_axis(labels, z) == axis
    check_labels(labels, z)
    with pytest.raises(ValueError, match=f"the network has {logits[axis]} outputs"):
        check_labels(labels + logits[axis], z)
    expected = F.cross_entropy(z.movedim(axis, -1).reshape(-1, logits[axis]), labels.flatten())
    assert Objective().value(z, {"y": labels}, 0.0) == pytest.approx(float(expected), rel=1e-5)


def test_labels_that_fit_no_axis_are_refused():
    for shape, y in (((6, 4, 5), (6, 4, 5)), ((6, 4, 5), (6,)), ((6, 4), (6, 1)), ((6, 4, 8, 9), (6, 9, 8))):
        with pytest.raises(ValueError, match=r"class labels must have"):
            check_labels(torch.zeros(y, dtype=torch.int64), torch.randn(shape))


def test_labels_outside_the_outputs_name_the_mark_of_missing_ones():
    match = "the network has 3 outputs, so they must be 0 to 2; -100 marks examples or pixels without a label"
    with pytest.raises(ValueError, match=match):
        check_labels(torch.tensor([[[0, 255]]]), torch.rand(1, 3, 1, 2))


def test_several_heads_sum_their_cross_entropies():
    output = {"colour": torch.randn(6, 3), "size": torch.randn(6, 4), "features": torch.randn(6, 9)}
    colour, size = torch.arange(6) % 3, torch.arange(6) % 4
    size[:3] = -100
    rows = {"y.colour": colour, "y.size": size}
    value = Objective().value(output, rows, 0.0)
    expected = F.cross_entropy(output["colour"], colour) + F.cross_entropy(output["size"][3:], size[3:])
    assert float(value) == pytest.approx(float(expected))
    correct, labels = Objective().hits(output, rows)
    right = (output["colour"].argmax(1) == colour).sum() + (output["size"][3:].argmax(1) == size[3:]).sum()
    assert (int(correct), int(labels)) == (int(right), 9)


def test_a_head_without_labels_in_a_batch_adds_nothing():
    output = {name: torch.randn(6, 3, requires_grad=True) for name in ("a", "b")}
    rows = {"y.a": torch.arange(6) % 3, "y.b": torch.full((6,), -100)}
    value = Objective().value(output, rows, 0.0)
    value.backward()
    assert value.item() == pytest.approx(F.cross_entropy(output["a"], rows["y.a"]).item())
    assert not output["b"].grad.any()


@pytest.mark.parametrize("output", [(torch.rand(6, 3),), torch.rand(6, 3), {"a": torch.rand(6, 3)}])
def test_several_targets_need_an_output_for_each(output):
    rows = {"y.a": torch.zeros(6, dtype=torch.int64), "y.b": torch.zeros(6, dtype=torch.int64)}
    with pytest.raises(TypeError, match=r"y has the targets a, b, but the network returned .* give loss=\(output, y\)"):
        Objective().check(rows, output, rows, 0.0)


def test_a_loss_gets_the_output_and_targets_as_they_are():
    seen = []
    objective = Objective(loss=lambda output, y: seen.append((output, y)) or output[0].sum())
    model = type("Pair", (nn.Linear,), {"forward": lambda self, x: (x.sum(1), {"logits": x})})(2, 2)
    rows = pack(torch.rand(4, 2), {"a": torch.rand(4), "b": torch.rand(4)})
    output = objective.output(model, objective.inputs(rows), rows)
    objective.check(rows, output, rows, 0.0)
    objective.value(output, rows, 0.0)
    assert isinstance(seen[0][0], tuple)
    assert set(seen[0][1]) == {"a", "b"}
    assert objective.hits(output, rows) is None


class Own(nn.Module):
    """A network with its own loss, of several signatures."""

    def __init__(self, kind):
        super().__init__()
        self.fc, self.kind = nn.Linear(4, 3), kind

    def forward(self, x, labels):
        logits = self.fc(x)
        loss = 2 * F.cross_entropy(logits, labels)
        return {"mapping": {"loss": loss, "logits": logits}, "object": Output(logits, loss), "loss": loss}[self.kind]


@pytest.mark.parametrize("kind", ["mapping", "object", "loss"])
@pytest.mark.parametrize("keywords", [False, True])
def test_the_models_own_loss(kind, keywords):
    model, x, y = Own(kind), torch.rand(6, 4), torch.arange(6) % 3
    rows = pack({"x": x} if keywords else x, y)
    objective = Objective(loss="model")
    output = objective.output(model, objective.inputs(rows), rows)
    assert objective.value(output, rows, 0.0).item() == pytest.approx(2 * F.cross_entropy(model.fc(x), y).item())
    assert objective.hits(output, rows) is None
    if kind != "loss":
        stored = rows | {"logits": torch.zeros(6, 3)}
        objective.check(stored, output, stored, 0.5)
        distilled = objective.value(output, stored, 0.5) - objective.value(output, stored, 0.0)
        assert distilled.item() == pytest.approx(0.5 * model.fc(x).square().mean().item(), rel=1e-4)


def test_forward_gets_the_labels_for_the_models_own_loss():
    objective = Objective(loss="model", forward=lambda model, x, y: {"loss": model(x, y) / 2})
    rows = pack(torch.rand(6, 4), torch.arange(6) % 3)
    model = Own("loss")
    output = objective.output(model, objective.inputs(rows), rows)
    assert objective.value(output, rows, 0.0).item() == pytest.approx(model(rows["x"], rows["y"]).item() / 2)


def test_an_output_without_a_loss_is_refused():
    for output, kind in (({"logits": torch.rand(6, 3)}, "dict"), (torch.rand(6, 3), r"tensor of shape \(6, 3\)")):
        with pytest.raises(ValueError, match=f"the model's output has no loss, it is a {kind}"):
            Objective(loss="model").value(output, {"y": torch.arange(6)}, 0.0)
    with pytest.raises(ValueError, match=r"loss is 'mse'; it must be a function \(output, y\) -> loss, or 'model'"):
        Objective(loss="mse")


def test_an_object_with_logits_is_an_output():
    model = type("Wrapped", (nn.Linear,), {"forward": lambda self, x: Output(F.linear(x, self.weight))})(4, 3)
    rows = pack(torch.rand(6, 4), torch.arange(6) % 3)
    output = Objective().output(model, unpack(rows), rows)
    assert isinstance(output, Tensor)
    Objective().check(rows, output, rows, 0.0)


def test_hits_count_correct_labels():
    logits = torch.eye(4)[[0, 1, 2, 3]]
    correct, labels = Objective().hits(logits, {"y": torch.tensor([0, 1, 3, -100])})
    assert (int(correct), int(labels)) == (2, 3)
    pixels = torch.eye(4).expand(2, 4, 4)[:, :3, None, :]  # (2, 3, 1, 4): classes 0, 1, 2 and none
    correct, labels = Objective().hits(pixels, {"y": torch.tensor([[[0, 1, 1, -100]]] * 2)})
    assert (int(correct), int(labels)) == (4, 6)
    assert Objective().hits(logits, {"y": torch.eye(4)}) is None


def test_rows_without_labels_are_recognised():
    nan = torch.nan
    assert labelled({"x": torch.full((2, 1), nan), "y": torch.tensor([3, -100])}).tolist() == [True, False]
    assert labelled({"y": torch.tensor([[nan, nan], [nan, 1.0]])}).tolist() == [False, True]
    assert labelled({"y.a": torch.tensor([1, -100, -100]), "y.b": torch.tensor([nan, 1.0, nan])}).tolist() == [
        True, True, False,
    ]  # fmt: skip
    assert labelled({"y": torch.tensor([156], dtype=torch.uint8)}).tolist() == [True]


def test_a_buffer_is_copied_without_unlabelled_examples():
    buffer = Buffer(8)
    buffer.add({"x": torch.arange(4.0)[:, None], "y": torch.arange(4)})
    assert with_labels(buffer) is buffer
    buffer.add({"x": torch.arange(4.0, 6.0)[:, None], "y": torch.full((2,), -100)})
    assert with_labels(buffer)["x"].flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert len(buffer) == 6
    unlabelled = Buffer(8)
    unlabelled.add({"x": torch.rand(2, 1), "y": torch.tensor([torch.nan, torch.nan])})
    with pytest.raises(ValueError, match="no example in the buffer has a label"):
        with_labels(unlabelled)

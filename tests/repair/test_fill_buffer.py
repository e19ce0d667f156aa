"""Examples of any kind become a buffer, or an error that says what is wrong with them."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from forgetless.memory.buffer import Buffer
from forgetless.repair.examples import fill_buffer

X, Y = torch.arange(24.0).view(12, 2), torch.arange(12) % 3


def filled():
    buffer = Buffer(12)
    buffer.add({"x": X, "y": Y})
    return buffer


@pytest.mark.parametrize(
    "examples",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        {"x": X, "y": Y},
        {"x": X, "labels": Y},
        TensorDataset(X, Y),
        list(TensorDataset(X, Y)),
        [{"x": x, "label": int(y)} for x, y in zip(X, Y, strict=True)],
        DataLoader(TensorDataset(X, Y), batch_size=5),
        [(X[:5], Y[:5]), (X[5:], Y[5:])],
        [(X[:4], Y[:4]), (X[4:8], Y[4:8]), (X[8:], Y[8:])],
        filled(),
    ],
    ids=[
        "pair", "list", "arrays", "columns", "labels", "dataset", "items", "mappings", "loader", "two batches",
        "three batches", "buffer",
    ],
)  # fmt: skip
def test_every_kind_of_examples_fills_the_buffer(examples):
    buffer = fill_buffer(examples)
    assert buffer.columns == ("x", "y")
    order = buffer["x"][:, 0].argsort()
    assert torch.equal(buffer["x"][order], X)
    assert torch.equal(buffer["y"][order], Y)


def test_inputs_with_names_become_keyword_arguments():
    buffer = fill_buffer({"input_ids": X.long(), "attention_mask": X.bool(), "labels": Y})
    assert buffer.columns == ("x.input_ids", "x.attention_mask", "y")


def test_every_eighth_example_is_a_sample_of_all_classes():
    y = torch.arange(160) % 8  # as it is, every eighth would be of one class
    held_out = fill_buffer((torch.rand(160, 2), y))["y"][::8]
    assert held_out.bincount().tolist() in ([3, 2] * 4, [2, 3] * 4)


def test_examples_without_a_label_are_left_out():
    y = Y.clone()
    y[:4] = -100
    assert fill_buffer((X, y))["y"].bincount().tolist() == [2, 3, 3]


def test_class_156_in_one_byte_is_a_class():
    y = torch.tensor([3, 156] * 6, dtype=torch.uint8)  # torch takes 156 for -100 where it compares bytes
    assert fill_buffer((X, y))["y"].sort().values.tolist() == [3] * 6 + [156] * 6


def test_every_eighth_sequence_is_a_sample_of_all():
    ids = torch.arange(160)[:, None].expand(160, 2)
    buffer = fill_buffer({"input_ids": ids, "labels": ids})
    assert {number % 2 for number in buffer["y"][::8, 0].tolist()} == {0, 1}  # as it is, every eighth would be even
    assert torch.equal(buffer["x.input_ids"], buffer["y"])
    assert buffer["y"][:, 0].sort().values.tolist() == list(range(160))


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (X, "examples is a tensor without labels; it must be"),
        ({"x": X}, "examples has the columns x, but no labels; name theirs y or labels"),
        ((X, torch.full((12,), -100)), "examples has no labels: all 12 are -100"),
        ((X, torch.full((12,), 2)), "examples has only the class 2, .* must hold examples of all classes"),
        ((X[:0], Y[:0]), "examples is empty; a repair needs examples of the old and of the new data"),
        ([], "examples is empty"),
        (iter([]), "examples holds no batch"),
        ((X, Y[:5]), "examples has columns of different lengths: .*'x': 12, 'y': 5"),
        ([(X[0], 1), (X[0, :1], 2)], "examples returns items that cannot be stacked"),
        ([X[0], X[1], X[2]], r"examples returns items of type Tensor; they must be \(input, label\)"),
        ([("a text", 1), ("another", 0)], "examples returns items that are not tensors or numbers"),
    ],
)
def test_examples_that_cannot_serve_are_refused(examples, message):
    with pytest.raises(ValueError, match=message):
        fill_buffer(examples)


@pytest.mark.parametrize("examples", [3, None, "images/"])
def test_examples_of_another_type_are_refused(examples):
    with pytest.raises(TypeError, match=r"examples is a \w+; it must be \(x, y\), a mapping"):
        fill_buffer(examples)

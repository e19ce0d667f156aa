"""Batches of one optimiser step as one."""

import pytest
import torch

from forgetless.integrations.batches import joined


def test_batches_are_joined():
    one, two = torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]])
    x, y, logits = joined([({"a": one}, one[:, 0], one), ({"a": two}, two[:, 0], two)])
    assert x["a"].tolist() == logits.tolist() == [[1.0], [2.0], [3.0]]
    assert y.tolist() == [1.0, 2.0, 3.0]
    assert joined([(one, one, None), (two, two, None)])[2] is None


def test_batches_of_different_shapes_are_refused():
    seen = [({"values": torch.zeros(2, length)}, torch.zeros(2), None) for length in (5, 7)]
    with pytest.raises(ValueError, match=r"x\.values: .* of the shapes \(5,\) and \(7,\); the buffer needs one shape"):
        joined(seen)


def test_shorter_sequences_are_padded():
    one, two = torch.tensor([[5, 6]]), torch.tensor([[7, 8, 9]])
    batches = [({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids, None) for ids in (one, two)]
    x, y, _ = joined(batches)
    assert x["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert x["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert y.tolist() == [[5, 6, -100], [7, 8, 9]]

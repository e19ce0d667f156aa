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


def test_batches_of_different_lengths_are_refused():
    seen = [({"ids": torch.zeros(2, length)}, torch.zeros(2), None) for length in (5, 7)]
    with pytest.raises(ValueError, match=r"x\.ids: .* of the shapes \(5,\) and \(7,\); .* pad to one length"):
        joined(seen)

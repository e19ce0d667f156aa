import math

import pytest
import torch

from forgetless.repair.non_finite import first_infinite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_first_tensor_that_is_not_finite(device, dtype, bad):
    largest = torch.finfo(dtype).max
    tensors = {
        "empty": torch.empty(0, device=device, dtype=dtype),
        "scalar": torch.tensor(largest, device=device, dtype=dtype),
        "large": torch.full((1000,), largest, device=device, dtype=dtype),
        "a.weight": torch.ones(70_001, device=device, dtype=dtype),
        "b.weight": torch.full((3,), bad, device=device, dtype=dtype),
    }
    assert first_infinite([1.0, 2.0], {name: tensors[name] for name in ("empty", "scalar", "large", "a.weight")}) == ""
    tensors["a.weight"][69_999] = bad
    assert first_infinite([1.0, 2.0], tensors) == "a.weight became infinite or NaN at the last of 2 steps"


def test_losses_come_first():
    tensors = {"weight": torch.tensor([math.nan])}
    assert first_infinite([1.0, math.inf, 1.0], tensors) == "the loss became inf at step 2 of 3"
    assert first_infinite([], {}) == ""

import pytest
import torch

from forgetless.memory.slots import reservoir_slots

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a GPU only")


def test_the_kernel_returns_the_slots_of_algorithm_3():
    from forgetless.compute.kernels import reservoir

    generator = torch.Generator("cuda").manual_seed(0)
    for capacity in (1, 7, 40):
        for size in (1, 10, 32, 100):
            counter = torch.zeros((), dtype=torch.int64, device="cuda")
            for step in range(8):
                numbers = torch.randint(2**62, (size,), generator=generator, device="cuda")
                expected = reservoir_slots(numbers, step * size, capacity)
                assert torch.equal(reservoir.reservoir_slots(numbers, counter, capacity), expected)
            assert int(counter) == 8 * size

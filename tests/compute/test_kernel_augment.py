import pytest
import torch

from forgetless.data.augment import Preparation
from forgetless.data.builders import split_by_class
from forgetless.data.stream import Split

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a GPU only")


@pytest.mark.parametrize(
    ("pad", "flip", "mean", "mirror"),
    [
        (2, True, (0.4, 0.5, 0.6), False),
        (2, True, (0.4, 0.5, 0.6), True),
        (0, True, (), False),
        (3, False, (0.1,) * 3, False),
        (3, False, (), True),
    ],
)
def test_the_kernel_gives_what_the_steps_of_augment_give(pad, flip, mean, mirror):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (40, 3, 19, 21), dtype=torch.uint8, generator=generator)
    split = Split(x, torch.zeros(40, dtype=torch.int64))
    std = (0.2, 0.3, 0.25) if mean else ()
    stream = split_by_class("s", split, split, [1], mean=mean, std=std, pad=pad, flip=flip, mirror=mirror)
    on_gpu = Preparation(stream, torch.device("cuda"))
    found = on_gpu.augmented(x.cuda(), torch.Generator("cuda").manual_seed(5))
    assert found.is_contiguous(memory_format=torch.channels_last)
    as_float = on_gpu.augmented(x.cuda().float() / 255, torch.Generator("cuda").manual_seed(5))  # not by the kernel
    torch.testing.assert_close(found, as_float, rtol=1e-5, atol=1e-5)

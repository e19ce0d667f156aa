import pytest
import torch

from forgetless.data.augment import Preparation, crop, flip
from forgetless.data.builders import split_by_class
from forgetless.data.stream import Split


@pytest.mark.parametrize("mirror", [False, True])
def test_every_crop_is_a_window_of_the_padded_image(device, mirror):
    x = torch.randint(1, 256, (64, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).to(device)
    generator = torch.Generator(device).manual_seed(0)
    cut = crop(x, 2, torch.randint(5, (2, 64, 1), generator=generator, device=device), mirror=mirror)
    assert cut.shape == x.shape
    assert cut.dtype == torch.uint8
    padded = torch.nn.functional.pad(x.float(), (2, 2, 2, 2), "reflect" if mirror else "constant").to(torch.uint8)
    places = set()
    for image, whole in zip(cut, padded, strict=True):
        found = [
            (i, j) for i in range(5) for j in range(5) if torch.equal(whole[:, i : i + 6, j : j + 5], image)
        ]  # fmt: skip
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 15  # of 25


def test_flips_mirror_about_half_of_the_images():
    x = torch.rand(400, 1, 2, 3)
    turned = flip(x, torch.rand(400, 1, 1, 1, generator=torch.Generator().manual_seed(0)))
    flipped = (turned == x.flip(-1)).flatten(1).all(1)
    same = (turned == x).flatten(1).all(1)
    assert bool((flipped ^ same).all())
    assert 150 < int(flipped.sum()) < 250


def test_preparation_scales_and_normalises():
    image = torch.tensor([0, 255, 51, 102], dtype=torch.uint8).reshape(1, 1, 2, 2)
    split = Split(image, torch.tensor([0]))
    plain = Preparation(split_by_class("s", split, split, [1]), torch.device("cpu"))
    torch.testing.assert_close(plain.plain(image).flatten(), torch.tensor([0.0, 1.0, 0.2, 0.4]))
    normal = Preparation(split_by_class("s", split, split, [1], mean=(0.5,), std=(0.25,)), torch.device("cpu"))
    torch.testing.assert_close(normal.plain(image).flatten(), torch.tensor([-2.0, 2.0, -1.2, -0.4]))
    assert torch.equal(normal.augmented(image, torch.Generator()), normal.plain(image))  # no crop, no flip


def test_features_are_normalised_too():
    split = Split(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([0, 1]))
    for mean, std, expected in (
        ((1.0,), (2.0,), [[0.0, 0.5], [1.0, 2.5]]),
        ((1.0, 2.0), (2.0, 4.0), [[0.0, 0.0], [1.0, 1.0]]),
    ):
        made = Preparation(split_by_class("s", split, split, [2], mean=mean, std=std), torch.device("cpu"))
        assert made.plain(split.x).tolist() == expected


def test_one_mean_serves_all_channels():
    split = Split(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8), torch.tensor([0]))
    one = Preparation(split_by_class("s", split, split, [1], mean=(0.5,), std=(0.25,)), torch.device("cpu"))
    assert torch.equal(one.plain(split.x), torch.full((1, 3, 2, 2), 2.0))


def test_a_mirrored_crop_reflects_at_the_edge():
    image = torch.arange(12, dtype=torch.uint8).reshape(1, 1, 3, 4)
    cut = crop(image, 2, torch.tensor([[[0]], [[4]]]), mirror=True)  # two up, two to the right
    assert cut[0, 0].tolist() == [[10, 11, 10, 9], [6, 7, 6, 5], [2, 3, 2, 1]]


def test_a_finetune_may_crop_more_than_the_stream():
    image = torch.arange(1, 26, dtype=torch.uint8).reshape(1, 1, 5, 5)
    split = Split(image, torch.tensor([0]))
    own = Preparation(split_by_class("s", split, split, [1]), torch.device("cpu"))
    made = own.cropping(2)
    generator = torch.Generator().manual_seed(0)
    offset = torch.randint(5, (2, 8, 1), generator=torch.Generator().manual_seed(0))
    wanted = crop(image.repeat(8, 1, 1, 1), 2, offset, mirror=True).float() / 255
    torch.testing.assert_close(made.augmented(image.repeat(8, 1, 1, 1), generator), wanted)
    torch.testing.assert_close(own.augmented(image, generator), image.float() / 255)  # the original does not change

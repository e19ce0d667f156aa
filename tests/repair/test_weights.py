"""Weights from state dicts, files and folders, matched with a network."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from forgetless.repair.weights import load_weights, match, read_weights


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, outputs))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("ending", ["safetensors", "pt", "pth"])
def test_files_hold_the_same_weights_as_the_state_dict(ending, tmp_path):
    state, file = network().state_dict(), tmp_path / f"weights.{ending}"
    save_file(state, file) if ending == "safetensors" else torch.save(state, file)
    assert same(read_weights(file, "before"), dict(state))


def test_checkpoints_hold_the_weights_inside(tmp_path):
    state = network().state_dict()
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {}}, tmp_path / "last.pt")
    assert same(read_weights(tmp_path / "last.pt", "before"), dict(state))


def test_shards_of_a_folder_are_joined(tmp_path):
    state = dict(network().state_dict())
    parts = {"a.safetensors": list(state)[:3], "b.safetensors": list(state)[3:]}
    for name, names in parts.items():
        save_file({key: state[key] for key in names}, tmp_path / name)
    index = {"weight_map": {key: name for name, names in parts.items() for key in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same(read_weights(tmp_path, "before"), state)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"where the shard b.safetensors is missing"):
        read_weights(tmp_path, "before")


def test_reading_executes_no_code(tmp_path):
    torch.save(network(), tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"whole.pt holds more than tensors.*save model.state_dict\(\)"):
        read_weights(tmp_path / "whole.pt", "before")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.pt", None, "before is .*missing.pt', which does not exist; it must be a state dict"),
        ("notes.txt", b"", r"notes.txt'; its name must end in .safetensors, .pt"),
        ("broken.pt", b"not a checkpoint", "broken.pt"),
        ("broken.safetensors", b"not a checkpoint", "broken.safetensors cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_named(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / name, "before")


def test_a_folder_without_weights_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds neither model.safetensors nor pytorch_model.bin"):
        read_weights(tmp_path, "before")


def test_a_state_without_tensors_is_an_error():
    with pytest.raises(ValueError, match="before holds no tensors by name"):
        read_weights({"epoch": 3}, "before")
    with pytest.raises(TypeError, match="before is a int; it must be a state dict"):
        read_weights(3, "before")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_a_shared_prefix_is_removed(prefix):
    state = {prefix + name: tensor for name, tensor in network().state_dict().items()}
    matched = match(network(), state, "before")
    weights = [f"{layer}.{kind}" for layer in (0, 1, 2) for kind in ("weight", "bias")]
    assert list(matched) == [*weights, "1.running_mean", "1.running_var"]


def test_tied_weights_are_found_under_either_name():
    model = Tied()
    for name in ("embed.weight", "head.weight"):
        assert torch.equal(match(model, {name: torch.ones(6, 4)}, "before")["embed.weight"], torch.ones(6, 4))


def test_the_first_tensors_that_differ_are_named():
    state = network(outputs=2).state_dict()
    del state["1.bias"]
    state["old.weight"] = torch.zeros(1)
    with pytest.raises(ValueError, match="another architecture") as raised:
        match(network(), state, "before")
    assert str(raised.value) == (
        "before is of another architecture than Sequential: 2.weight has shape (2, 5) in before and (3, 5) in the "
        "network; 2.bias has shape (2,) in before and (3,) in the network; 1.bias is missing from before; and 1 more; "
        "it must hold the same tensors in the same shapes"
    )


def test_weights_that_are_not_finite_are_named():
    state = network().state_dict()
    state["2.bias"][1] = torch.nan
    with pytest.raises(ValueError, match="before holds NaN or infinity in 2.bias"):
        match(network(), state, "before")


def test_loading_restores_weights_statistics_and_counters():
    trained, fresh = network(), network()
    trained.train()(torch.rand(8, 4))
    load_weights(fresh, {f"module.{name}": tensor for name, tensor in trained.state_dict().items()}, "after")
    assert same(dict(fresh.state_dict()), dict(trained.state_dict()))
    assert fresh[1].num_batches_tracked == 1

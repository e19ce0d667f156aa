import pytest

from forgetless import networks
from forgetless.repair.selection import Selection
from forgetless.repair.settings import Finetune

NAMES = [f"fc{i}.{kind}" for i in (1, 2, 3) for kind in ("weight", "bias")]


def changes(*by_layer):
    return dict(zip(NAMES, by_layer, strict=True))


def test_scores_and_choice_worked_by_hand():
    selection = Selection(networks.mlp(10), Finetune())
    by_tensor = changes(2.0, 2.0, 2.0, 2.0, 8.0, 8.0)  # S = 3 × (2, 2, 8) / 12
    assert selection.scores(by_tensor) == pytest.approx({"fc1": 0.5, "fc2": 0.5, "fc3": 2.0})
    assert selection.choice(by_tensor) == ("fc3",)
    by_tensor = changes(0.0, 8.0, 0.0, 0.0, 0.0, 0.0)  # only the bias of fc1: one group alone moves
    assert selection.scores(by_tensor) == pytest.approx({"fc1": 3.0, "fc2": 0.0, "fc3": 0.0})
    assert selection.names(("fc3",)) == ["fc3.weight", "fc3.bias"]


def test_a_choice_is_kept():
    selection = Selection(networks.mlp(10), Finetune())
    selection.chosen = ("fc1",)
    assert selection.choice(changes(0.0, 0.0, 0.0, 0.0, 1.0, 1.0)) == ("fc1",)


def test_nothing_is_chosen_while_nothing_is_known():
    selection = Selection(networks.mlp(10), Finetune())
    assert selection.choice({}) == ()
    assert selection.scores(changes(*[0.0] * 6)) == {}
    assert selection.why_not({}).startswith("no shift of the data was seen, so no sensitivity is known. Call boundary")


def test_statistics_that_move_alone_choose_nothing():
    selection = Selection(networks.resnet18(4, width=4), Finetune())
    only_statistics = {name: float("running" in name) for name in selection.tracked}
    assert selection.scores(only_statistics) == {}


def test_statistics_of_frozen_layers_are_not_tracked():
    model = networks.resnet18(4, width=4)
    model.bn1.requires_grad_(False)
    tracked = Selection(model, Finetune()).tracked
    assert not [name for name in tracked if name.startswith("bn1.")]
    assert "block1.0.bn1.running_mean" in tracked


def test_a_grouping_must_not_split_statistics():
    assert Selection(networks.mlp(10), Finetune(), grouping={"last": ["fc3.weight"]}).tracked == ["fc3.weight"]
    with pytest.raises(ValueError, match="statistics of bn1 move together"):
        Selection(networks.resnet18(4, width=4), Finetune(), grouping={"a": ["bn1.running_mean"], "b": ["fc.weight"]})


def test_a_profile_counts_what_can_move():
    network = networks.mlp(10)
    network.fc1.weight.requires_grad_(False)
    for parameter in network.fc2.parameters():
        parameter.requires_grad_(False)
    profile = Selection(network, Finetune(groups="all")).profile({}, 0)
    assert [(group.name, group.parameters, group.chosen) for group in profile.groups] == [
        ("fc1", 100, True), ("fc2", 0, False), ("fc3", 1010, True)
    ]  # fmt: skip
    assert profile.share == pytest.approx(1110 / 89610)

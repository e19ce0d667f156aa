import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forgetless.repair.sensitivity import changes, filter_changes, group_changes, select, sensitivity


def change(now, before):
    return changes({"w": now}, {"w": before})["w"]


def test_change_is_the_mean_absolute_difference():
    before = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert change(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), before).item() == 1.5


def test_change_of_bfloat16_is_averaged_in_float32():
    before = torch.zeros(1000, dtype=torch.bfloat16)
    now = before.clone()
    now[0] = 1.0
    assert change(now, before).item() == pytest.approx(0.001, rel=1e-6)


@pytest.mark.parametrize("function", [change, filter_changes])
def test_changes_of_another_shape_are_refused(function):
    with pytest.raises(ValueError, match=r"had shape \(3, 1\), now it has \(3, 2\)"):
        function(torch.zeros(3, 2), torch.zeros(3, 1))


def test_filter_changes_are_one_mean_for_each_filter():
    before = torch.zeros(3, 2, 1, 2)
    now = before.clone()
    now[1] = 2.0
    now[2, 0, 0, 0] = -4.0
    assert filter_changes(now, before).tolist() == [0.0, 2.0, 1.0]


def test_a_group_is_the_mean_of_its_layers():
    groups = {"g": ("a.weight", "a.bias", "b.weight"), "h": ("token",)}
    changes = {"a.weight": 1.0, "a.bias": 4.0, "b.weight": 2.0, "token": 5.0}
    sizes = {"a.weight": 2, "a.bias": 1, "b.weight": 100, "token": 7}
    # layer a: (2 · 1 + 1 · 4) / 3 = 2; layer b: 2; so g is 2
    assert group_changes(changes, groups, sizes) == {"g": 2.0, "h": 5.0}


def test_sensitivity_worked_by_hand():
    assert sensitivity({"conv1": 1.0, "block1": 2.0, "fc": 5.0}) == {"conv1": 0.375, "block1": 0.75, "fc": 1.875}


def test_statistics_are_scored_against_the_sum_of_the_others():
    scores = sensitivity({"conv1": 1.0, "fc": 3.0, "bn.stats": 36.0})
    assert scores == {"conv1": 0.5, "fc": 1.5, "bn.stats": 18.0}


def test_the_literal_reading_sums_over_all_groups():
    scores = sensitivity({"conv1": 1.0, "fc": 3.0, "bn.stats": 36.0}, statistics=())
    assert scores == {"conv1": 0.075, "fc": 0.225, "bn.stats": 2.7}


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.floats(1e-6, 1e6), min_size=1))
def test_the_mean_of_all_sensitivities_is_one(changes):
    scores = sensitivity(changes, statistics=())
    assert math.fsum(scores.values()) / len(scores) == pytest.approx(1.0)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "bn.affine"]), st.floats(1e-6, 1e6), min_size=1))
def test_the_mean_over_trainable_groups_is_one(changes):
    scores = sensitivity({**changes, "bn.stats": 7.0})
    assert math.fsum(scores[group] for group in changes) / len(changes) == pytest.approx(1.0)


@pytest.mark.parametrize(("value", "match"), [(math.nan, "'a' is nan"), (math.inf, "'a' is inf"), (-1.0, "'a' is -1")])
def test_an_impossible_change_is_refused(value, match):
    with pytest.raises(ValueError, match=match):
        sensitivity({"a": value, "b": 1.0})


def test_no_change_at_all_has_no_sensitivity():
    with pytest.raises(ValueError, match="none of the groups a, b changed"):
        sensitivity({"a": 0.0, "b": 0.0})


def test_the_papers_thresholds_give_its_choices_on_measured_changes():
    # Eq. 1 over all eight groups of ResNet-18, ER on Seq-CIFAR-10, as measured with every tensor taken as a layer
    measured = {
        "conv1": 0.57, "block1": 0.22, "block2": 0.15, "block3": 0.087, "block4": 0.034,
        "bn.affine": 0.14, "bn.stats": 5.95, "fc": 0.84,
    }  # fmt: skip
    scores = sensitivity(measured)
    assert select(scores, above=1.0) == ("conv1", "bn.affine", "bn.stats", "fc")
    assert scores["block3"] == pytest.approx(0.30, abs=0.005)
    assert scores["block4"] < 0.2
    assert "block4" not in select(scores, above=0.3)


def test_selection_by_threshold_is_strict_and_keeps_the_order():
    assert select({"c": 2.0, "a": 1.0, "b": 1.5}) == ("c", "b")


def test_batch_norm_is_chosen_as_a_unit():
    scores = {"bn.affine": 0.1, "bn.stats": 6.0, "fc": 2.0}
    assert select(scores) == ("bn.affine", "bn.stats", "fc")
    assert select(scores, units=()) == ("bn.stats", "fc")


def test_selection_by_list_and_all():
    scores = {"a": 0.1, "b": 3.0, "c": 0.2}
    assert select(scores, groups=["c", "a"]) == ("a", "c")
    assert select(scores, groups="all") == ("a", "b", "c")
    assert select(scores, groups="b") == ("b",)
    with pytest.raises(ValueError, match="groups is empty"):
        select(scores, groups=[])


def test_an_unknown_group_names_the_nearest():
    with pytest.raises(ValueError, match="no group named 'blok1'; did you mean 'block1'"):
        select({"conv1": 0.1, "block1": 3.0, "fc": 1.0}, groups=["blok1"])

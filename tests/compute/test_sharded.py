"""Processes that share a network by ``fully_shard`` end at the weights of one process, and resume in any number."""

import json
from pathlib import Path

import pytest

from helpers import in_processes

PROGRAM = Path(__file__).parents[1] / "programs" / "sharded.py"
POLICIES = pytest.mark.parametrize("policy", ["budget", "language", "schedule"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return where the program wrote what it did."""
    pytest.importorskip("accelerate", reason="needs accelerate")
    folder = tmp_path_factory.mktemp("sharded")
    in_processes(1, PROGRAM, folder)
    return folder


@pytest.fixture(scope="module")
def sharded(folder):
    """Return what one process, or each of two, wrote for a case."""
    return lambda case, count: [
        json.loads((folder / f"{case}{count}-{rank}.json").read_text()) for rank in range(count)
    ]


@POLICIES
def test_two_processes_equal_one_with_the_same_data(sharded, policy):
    (one,), (first, second) = sharded(f"{policy}-plain", 1), sharded(f"{policy}-plain", 2)
    assert first["weights"] == second["weights"] == pytest.approx(one["weights"], abs=1e-4)
    assert first["losses"] == second["losses"] == pytest.approx(one["losses"], rel=1e-3)
    assert first["scores"] == second["scores"] == pytest.approx(one["scores"], rel=1e-3)
    assert first["chosen"] == second["chosen"] == one["chosen"]
    assert first["finetunings"] == one["finetunings"] == {"budget": 10, "language": 1, "schedule": 3}[policy]
    assert [first["held"], second["held"]] == [one["held"] / 2] * 2


def test_shards_and_gradients_are_left_as_they_were(sharded):
    """The second process has an empty shard of the parameter with one element."""
    first, second = sharded("budget-plain", 2)
    assert [first["sharded"], second["sharded"]] == [True, True]
    assert [first["gradients"], second["gradients"]] == [True, True]
    assert [first["smallest"], second["smallest"]] == [1, 0]


def test_compile_checkpointing_and_summed_gradients_change_nothing(sharded):
    composed, plain = sharded("schedule-composed", 2)[0], sharded("schedule-plain", 2)[0]
    assert composed["weights"] == pytest.approx(plain["weights"], abs=1e-4)
    assert composed["losses"] == pytest.approx(plain["losses"], rel=1e-3)


def test_what_accelerate_prepares_ends_the_same(sharded):
    prepared, plain = sharded("schedule-accelerate", 2)[0], sharded("schedule-plain", 2)[0]
    assert prepared["sharded"]
    assert prepared["weights"] == pytest.approx(plain["weights"], abs=1e-4)


def test_copies_of_shards_end_at_the_weights_of_one(sharded):
    (one,), copies = sharded("schedule-plain", 1), sharded("schedule-copies", 4)
    assert [copy["weights"] == copies[0]["weights"] for copy in copies] == [True] * 4
    assert copies[0]["weights"] == pytest.approx(one["weights"], abs=1e-4)
    assert copies[0]["scores"] == pytest.approx(one["scores"], rel=1e-3)


def test_uneven_buffers_repair_as_with_ddp(sharded):
    """The first process has 64 examples and the second 24, so it calls the network more often."""
    first, second = sharded("budget-uneven", 2)
    reference = sharded("budget-uneven-ddp", 2)[0]
    assert first["weights"] == second["weights"]
    assert [first["held"], second["held"]] == [64, 24]
    assert first["chosen"] == reference["chosen"]
    assert first["scores"] == pytest.approx(reference["scores"], rel=1e-4)
    assert first["losses"][0] == pytest.approx(reference["losses"][0], rel=1e-4)
    assert first["losses"][1] == pytest.approx(reference["losses"][1], rel=0.1)  # repairs amplify rounding


@POLICIES
def test_killed_processes_resume_with_the_same_bits(folder, sharded, policy):
    assert not (folder / f"{policy}-saved2-0.json").exists()
    assert sharded(f"{policy}-resumed", 2) == sharded(f"{policy}-plain", 2)


@POLICIES
def test_one_process_resumes_the_state_of_two(sharded, policy):
    (one,), (resumed,) = sharded(f"{policy}-plain", 1), sharded(f"{policy}-resumed", 1)
    assert resumed["weights"] == pytest.approx(one["weights"], abs=1e-4)
    assert resumed["held"] == one["held"]
    assert resumed["chosen"] == one["chosen"]


def test_a_missing_file_of_a_checkpoint_is_named(folder):
    said = json.loads((folder / "missing.json").read_text())
    assert "__1_0.distcp" in said["error"]
    assert (said["step"], said["held"]) == (0, 0)

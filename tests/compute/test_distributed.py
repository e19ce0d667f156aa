"""Processes that train one network together choose the same groups and end at the weights of one process."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from forgetless import FPF, networks
from forgetless.compute.distributed import Processes
from helpers import in_processes

PROGRAM = Path(__file__).parents[1] / "programs" / "together.py"


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return what one process, or each of two, wrote for a case."""
    folder = tmp_path_factory.mktemp("together")
    in_processes(1, PROGRAM, folder)
    return lambda case, count: [
        json.loads((folder / f"{case}{count}-{rank}.json").read_text()) for rank in range(count)
    ]


def test_two_processes_equal_one_with_the_same_data(together):
    """Each has half of every batch and of the buffer. Sums in another order differ by less than 1e-4."""
    (one,), (first, second) = together("whole", 1), together("whole", 2)
    assert first["weights"] == second["weights"]
    assert first["chosen"] == second["chosen"] == one["chosen"]
    assert first["finetunings"] == second["finetunings"] == one["finetunings"] == 3
    assert first["shifts"] == second["shifts"] == one["shifts"]
    assert len(first["kept"]) == len(second["kept"]) == len(one["kept"]) / 2
    assert sorted(first["kept"] + second["kept"]) == one["kept"]
    assert first["losses"] == second["losses"] == pytest.approx(one["losses"], rel=1e-3)
    assert first["weights"] == pytest.approx(one["weights"], abs=1e-4)


def test_a_shared_small_buffer_repairs_as_well(together):
    (one,), (first, second) = together("sampled", 1), together("sampled", 2)
    assert [first["capacity"], second["capacity"], one["capacity"]] == [30, 30, 60]
    assert not set(first["kept"]) & set(second["kept"])
    assert first["weights"] == second["weights"]
    assert first["chosen"] == second["chosen"]
    assert [first["state"], second["state"]] == [[0, 2], [1, 2]]
    assert min(first["accuracy"], one["accuracy"]) > 85


def test_batch_norm_statistics_agree_after_a_finetuning(together):
    first, second = together("norm", 2)
    assert "norm.stats" in first["chosen"]
    assert first["weights"] == second["weights"]


def test_processes_share_a_budget(together):
    """They count the examples of all batches, which differ in size, and repair after the same steps."""
    (one,), (first, second) = together("budget", 1), together("budget", 2)
    assert first["weights"] == second["weights"]
    assert first["chosen"] == second["chosen"]
    assert first["losses"] == second["losses"]
    assert first["trained"] == second["trained"] == one["trained"] == 960
    assert first["finetunings"] == second["finetunings"] > 1
    assert min(first["accuracy"], one["accuracy"]) > 85


def test_processes_with_unequal_shares_repair_after_the_same_steps(together):
    first, second = together("odd", 2)
    assert [first["capacity"], second["capacity"]] == [11, 10]
    assert first["weights"] == second["weights"]
    assert first["finetunings"] == second["finetunings"] > 1


def test_unlabelled_examples_have_no_weight(together):
    """One process has 60 labels and the other one; the update equals that of 61, in double precision."""
    (one,), (first, second) = together("unlabelled", 1), together("unlabelled", 2)
    assert first == second
    assert first["weights"] == pytest.approx(one["weights"], abs=1e-12)
    assert first["losses"] == pytest.approx(one["losses"], rel=1e-6)


def test_an_empty_process_blocks_no_other(together):
    """No process finetunes, and each error names the process with the empty buffer."""
    said = "the buffer{} is empty: call observe() after each training step, before finish()"
    assert together("starved", 1) == [{"done": [None, None], "error": said.format("")}]
    assert together("starved", 2) == [{"done": [None, None], "error": said.format(" of process 1")}] * 2


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_group_of_one_is_one_process(alone):
    assert (Processes().count, Processes().rank) == (1, 0)
    values = torch.tensor([1.0, 2.0])
    assert Processes().mean(values) is values
    assert Processes().mean_over_examples([values], 3)[0] is values


def test_finetuning_leaves_a_distributed_network_ready(alone):
    """Its reducer waits for a backward() after each forward pass, but a finetuning calls none."""
    model = torch.nn.parallel.DistributedDataParallel(networks.mlp(4, inputs=3, hidden=(5,)))
    fpf = FPF(model, capacity=8, every=1, steps=2, groups="all")
    for _ in range(3):
        x, y = torch.rand(4, 3), torch.arange(4)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        fpf.observe(x, y)
    assert fpf.finetunings == 2


class ThirdOfThree(Processes):
    """The third of three processes, without the others."""

    def __init__(self):
        super().__init__()
        self.count, self.rank = 3, 2

    def _sum(self, values):  # the two others have one example each, with values 10
        return values + torch.cat([torch.tensor([2.0]), torch.full((len(values) - 1,), 20.0)])


def test_shares_and_means_by_hand():
    third = ThirdOfThree()
    assert third.share(8, "batch") == 2
    with pytest.raises(ValueError, match="capacity is 2; with 3 processes it must be 3 or more"):
        third.share(2, "capacity")
    # (4 · 1 + 10 + 10) / 6 = 4 and (4 · 4 + 10 + 10) / 6 = 6
    assert [v.tolist() for v in third.mean_over_examples([torch.tensor(1.0), torch.tensor([4.0])], 4)] == [4.0, [6.0]]


def test_a_state_of_another_process_is_refused():
    fpf = FPF(networks.mlp(2, inputs=2, hidden=(3,)))
    state = {**fpf.state_dict(), "processes": [1, 2]}
    with pytest.raises(ValueError, match="the state is of process 1 of 2; this is process 0 of 1"):
        fpf.load_state_dict(state)

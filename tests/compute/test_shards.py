"""Sharded parameters in a group of one process; tests/compute/test_sharded.py has two."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import forgetless
from forgetless.compute import shards
from forgetless.compute.distributed import Processes
from helpers import CNN

PARTS = "each process has only a part of the weights; use fully_shard"
pytestmark = pytest.mark.usefixtures("one_process")


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def train(model, fpf, steps=40):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(steps):
        x = torch.rand(8, 4, generator=torch.Generator().manual_seed(step))
        y = (3 * x[:, step * 4 // steps]).long()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        fpf.observe(x, y)


def weights(network):
    return torch.cat([shards.shard(p).flatten() for p in shards_of(network)])


def shards_of(network):
    shards.reshard(network)
    return list(network.parameters())


@pytest.mark.parametrize(
    "settings", [{"budget": 10}, {"every": 10, "window": 2, "steps": 5}], ids=["budget", "schedule"]
)
@pytest.mark.parametrize("late", [False, True], ids=["FPF after fully_shard", "FPF before fully_shard"])
def test_a_sharded_network_ends_as_a_whole_one(settings, late):
    results = []
    for sharded in (False, True):
        network = small()
        fpf = forgetless.FPF(network, capacity=64, groups="all", **settings) if late else None
        if sharded:
            fully_shard(network)
        fpf = fpf or forgetless.FPF(network, capacity=64, groups="all", **settings)
        train(network, fpf)
        fpf.finish()
        assert fpf.finetunings > 1
        results.append(weights(network))
    assert torch.allclose(*results, atol=1e-5)


def test_frozen_shards_stay():
    network = fully_shard(small())
    network[0].weight.requires_grad_(False)
    before = shards.shard(network[0].weight).clone()
    fpf = forgetless.FPF(network, capacity=64)
    train(network, fpf)
    fpf.finish()
    assert [parameter.requires_grad for parameter in shards_of(network)] == [False, True, True, True]
    assert torch.equal(shards.shard(network[0].weight), before)


def test_mixed_precision_repairs_the_shards_in_float32():
    network = fully_shard(small(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    fpf = forgetless.FPF(network, capacity=64)
    train(network, fpf)
    report = fpf.finish()
    assert report.loss_after <= report.loss_before
    assert {parameter.dtype for parameter in shards_of(network)} == {torch.float32}


def test_weights_read_after_a_repair_are_current():
    """The root of a sharded network shows whole weights after a forward pass, which miss what is written to shards."""
    network = fully_shard(small())
    with torch.no_grad():
        network(torch.rand(2, 4))
    assert not hasattr(network[0].weight, "device_mesh")
    restorer = forgetless.repair.restoring.Restorer(network, ["0.weight"])
    with torch.no_grad():
        shards.shard(network[0].weight).zero_()
        network(torch.rand(2, 4))
    restorer.restore()
    with torch.no_grad():
        assert torch.equal(network(torch.ones(2, 4)), small()(torch.ones(2, 4)))


def test_a_whole_network_resumes_the_checkpoint_of_a_sharded_one(tmp_path):
    sharded = fully_shard(small())
    fpf = forgetless.FPF(sharded, capacity=64, budget=4)
    train(sharded, fpf, steps=17)
    dcp.save({"network": sharded.state_dict(), "fpf": forgetless.ShardedState(fpf)}, checkpoint_id=tmp_path)
    whole = small()
    other = forgetless.FPF(whole, capacity=64, budget=4)
    dcp.load({"network": (state := whole.state_dict()), "fpf": forgetless.ShardedState(other)}, checkpoint_id=tmp_path)
    whole.load_state_dict(state)
    assert (other.step, len(other.buffer)) == (17, len(fpf.buffer))
    assert fpf.finish().loss_after == pytest.approx(other.finish().loss_after, rel=1e-4)
    assert torch.allclose(weights(sharded), weights(whole), atol=1e-5)


def test_what_cannot_be_repaired_is_refused_by_name():
    with pytest.warns(UserWarning, match="world size is 1"):
        network = FullyShardedDataParallel(CNN(), device_id=torch.device("cpu"))
    with pytest.raises(ValueError, match=rf"^the network is a FullyShardedDataParallel \(FSDP1\), .*{PARTS}"):
        forgetless.FPF(network)
    parallel = small()
    mesh = init_device_mesh("cpu", (1,))
    parallel[0].weight = nn.Parameter(distribute_tensor(parallel[0].weight, mesh, [Shard(0)]))
    with pytest.raises(ValueError, match=rf"^parameter 0\.weight is split by tensor parallelism, .*{PARTS}"):
        forgetless.groups(parallel)


class DeepSpeedEngine(nn.Module):
    """DeepSpeed's wrapper has this name."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_deepspeed_is_refused_by_name():
    own_copy = "keeps its own copy of the weights .* would undo a repair; use fully_shard"
    with pytest.raises(ValueError, match=f"^the network is a DeepSpeedEngine: .*{own_copy}"):
        forgetless.FPF(DeepSpeedEngine(small()))
    second, third = small(), small()
    second[0].weight._hp_mapping = None  # as ZeRO-1 and -2 mark the parameters they train
    with pytest.raises(ValueError, match=rf"^parameter 0\.weight is trained by DeepSpeed: .*{own_copy}"):
        forgetless.FPF(second)
    third[0].weight.ds_id = 0  # as ZeRO-3 does
    with pytest.raises(ValueError, match=rf"^parameter 0\.weight is partitioned by DeepSpeed's ZeRO-3, .*{PARTS}"):
        forgetless.FPF(third)


def test_a_finished_model_must_be_whole():
    with pytest.raises(ValueError, match="^the network is split by fully_shard; repair the whole network"):
        forgetless.repair(fully_shard(small()), (torch.rand(16, 4), torch.zeros(16, dtype=torch.int64)))


def test_a_mesh_of_other_processes_is_refused():
    processes = Processes()
    processes.count = 4
    with pytest.raises(ValueError, match=r"^parameter 0\.weight is split over 1 processes, but 4 would repair"):
        shards.check_processes(fully_shard(small()), processes)

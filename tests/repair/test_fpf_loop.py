import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from loops import MODE_NAMES, MODES, accuracy, in_two_tasks, make, run, shifting
from torch import nn

from forgetless import FPF, NonFiniteError, networks

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import own_loop  # the digits stream


@pytest.mark.parametrize("kind", ["cnn", "transformer", "mlp"])
def test_k_fpf_keeps_what_plain_training_forgets(kind, device):
    model, shape = make(kind)
    model.to(device)
    run(model, shape, device=device)
    assert accuracy(model, shape, device) < 0.8
    model, shape = make(kind)
    model.to(device)
    fpf = FPF(model, capacity=64, every=30, steps=50, lr=0.1)
    run(model, shape, fpf, device=device, announced=True)
    assert accuracy(model, shape, device) > 0.9
    assert fpf.shifts == [60]


def test_fpf_repairs_once_at_the_end(device):
    model, shape = make("mlp")
    model.to(device)
    fpf = FPF(model, capacity=64, lr=0.1)
    done = run(model, shape, fpf, device=device, announced=True)
    assert done.steps == 300
    assert fpf.finetunings == 1
    assert accuracy(model, shape, device) > 0.9


K_MODES = [{"every": 30, "steps": 50, "lr": 0.1}, {"budget": 2}]


@pytest.mark.parametrize("mode", K_MODES, ids=MODE_NAMES)
def test_parameters_in_float64(mode):
    model, shape = make("mlp")
    model.double()
    fpf = FPF(model, 64, **mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(shifting(shape)):
        if step == 60:
            fpf.boundary()
        optimizer.zero_grad()
        F.cross_entropy(model(x.double()), y).backward()
        optimizer.step()
        fpf.observe(x.double(), y)
    fpf.finish()
    right = torch.cat([model(x.double()).argmax(1) == y for x, y in shifting(shape, steps=5)])
    assert right.float().mean() > 0.9


@pytest.mark.parametrize("mode", [{"every": 30, "steps": 20, "lr": 0.1}, {"budget": 2}], ids=MODE_NAMES)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_network_is_repaired_alike(in_place, mode):
    plain, shape = make("mlp")
    fpf = FPF(plain, 64, **mode)
    run(plain, shape, fpf, announced=True)
    model, shape = make("mlp")
    if in_place:
        model.compile(backend="aot_eager")
        compiled = model
    else:
        compiled = torch.compile(model, backend="aot_eager")
    run(
        compiled,
        shape,
        FPF(compiled, 64, **mode),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        announced=True,
    )
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", K_MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_any_optimiser(optimizer, mode):
    model, shape = make("mlp")
    fpf = FPF(model, 64, **mode)
    run(model, shape, fpf, optimizer=optimizer(model.parameters(), lr=0.003), announced=True)
    assert accuracy(model, shape) > 0.9


def test_digits_example_gains_40_points_over_sgd():
    plain = sum(own_loop.run(seed, "SGD alone")[0] for seed in range(3)) / 3
    repaired = sum(own_loop.run(seed, "k-FPF-CE")[0] for seed in range(3)) / 3
    assert plain < 30
    assert repaired >= plain + 40


def test_a_step_is_counted_then_finetuned_then_stored():
    model, shape = make("mlp")
    seen = []
    fpf = FPF(model, 64, every=3, steps=1, groups=["fc3"], augment=lambda x: seen.append(fpf.buffer.seen) or x)
    for step, (x, y) in zip(range(1, 8), shifting(shape), strict=False):
        done = fpf.observe(x, y)
        assert (done is not None) == (step % 3 == 0)
    assert seen == [0, 2 * 16, 5 * 16]  # at first a trial; the batch of steps 3 and 6 not yet among them
    fpf.finish()
    assert seen == [0, 2 * 16, 5 * 16, 7 * 16]


def test_nothing_is_finetuned_before_a_shift_is_known():
    model, shape = make("mlp")
    fpf = FPF(model, 64, every=10, steps=1, detect=False)
    batches = list(shifting(shape))
    for x, y in batches[:30]:
        assert fpf.observe(x, y) is None
    with pytest.warns(
        UserWarning, match=r"nothing was finetuned in 30 steps: no shift of the data was seen.* Call boundary"
    ):
        assert fpf.finish() is None
    assert fpf.profile().chosen == ()


def test_the_choice_is_made_once_and_kept():
    model, shape = make("mlp")
    fpf = FPF(model, 64, every=50, steps=5)
    run(model, shape, fpf, announced=True)
    first = fpf.profile().chosen
    with torch.no_grad():
        model.fc1.weight.add_(100.0)
    fpf.boundary()
    for x, y in list(shifting(shape))[:20]:
        fpf.observe(x, y)
    assert fpf.sensitivities()["fc1"] > 1.0
    assert fpf.profile().chosen == first


def test_sensitivities_are_those_of_snapshots_taken_by_hand():
    model, shape = make("mlp")
    fpf = FPF(model, 64, window=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    at = {}
    for step, (x, y) in enumerate(shifting(shape), start=1):
        if step == 61:
            fpf.boundary()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        fpf.observe(x, y)
        at[step] = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    change = {name: (at[65][name] - at[5][name]).abs().mean().item() for name in at[5]}  # five steps into each task
    size = {name: tensor.numel() for name, tensor in at[5].items()}
    group = {}
    for i in (1, 2, 3):
        weight, bias = f"fc{i}.weight", f"fc{i}.bias"
        group[f"fc{i}"] = (size[weight] * change[weight] + size[bias] * change[bias]) / (size[weight] + size[bias])
    total = sum(group.values())
    assert fpf.sensitivities() == pytest.approx({name: 3 * value / total for name, value in group.items()}, rel=1e-5)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_only_chosen_groups_move_and_user_state_stays(mode):
    torch.manual_seed(0)
    model = networks.resnet18(4, width=4)
    model.block1.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    fpf = FPF(model, 32, groups=["bn.affine", "bn.stats", "fc"], augment=lambda x: x.flip(-1), **mode)
    x, y = next(shifting((3, 8, 8)))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    fpf.observe(x, y)
    before = copy.deepcopy(model.state_dict())
    momentum = copy.deepcopy(optimizer.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    torch.manual_seed(3)
    following = torch.rand(1)
    torch.manual_seed(3)
    fpf.finish()
    assert torch.equal(torch.rand(1), following)
    assert fpf.profile().chosen == ("bn.affine", "bn.stats", "fc")
    chosen = {name for group in fpf.profile().chosen for name in fpf._repairer.selection.grouping[group]}
    counters = {name for name in before if name.endswith("num_batches_tracked")}
    held = {name for name in before if name.startswith("block1.") and ("running" in name or name in counters)}
    assert len(held) == 4 * 3
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == (chosen | counters) - held  # the statistics of what is in evaluation mode stay
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert str(optimizer.state_dict()) == str(momentum)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert [m.training for m in (model, model.block1, model.block1[0], model.bn1)] == [True, False, False, True]


def test_stored_logits_are_those_of_the_training_pass():
    model, shape = make("mlp")
    fpf = FPF(model, 64, every=1000, distill=0.5)
    x, y = next(shifting(shape))
    logits = model(x)
    fpf.observe(x, y, logits)
    assert torch.equal(fpf.buffer["logits"], logits.detach())
    assert not fpf.buffer["logits"].requires_grad


@pytest.mark.parametrize("mode", [{"steps": 40, "lr": 0.3}, {}], ids=MODE_NAMES)
def test_a_users_loss_grouping_and_forward(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    grouping = {"first": ["0.weight", "0.bias"], "last": ["2.weight", "2.bias"]}
    fpf = FPF(
        model, 32, groups=["last"], grouping=grouping,
        loss=lambda output, y: (output - y).square().mean(), forward=lambda model, x: model(x)[:, 0], **mode,
    )  # fmt: skip
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    fpf.observe(x, x.sum(1))
    before = copy.deepcopy(model.state_dict())
    first = (model(x)[:, 0] - x.sum(1)).square().mean()
    fpf.finish()
    assert (model(x)[:, 0] - x.sum(1)).square().mean() < first / 2
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert moved == grouping["last"]


def test_a_balanced_buffer_keeps_a_rare_class():
    y = torch.tensor([0] * 90 + [1] * 6 + [2] * 4)
    held = []
    for policy in ("reservoir", "balanced"):
        fpf = FPF(networks.mlp(3, 4), capacity=12, policy=policy)
        for labels in y.split(10):
            fpf.observe(torch.rand(len(labels), 4), labels)
        held.append(fpf.buffer["y"].bincount(minlength=3).tolist())
    assert held[0][0] > 4
    assert held[1] == [4, 4, 4]
    again = FPF(networks.mlp(3, 4), capacity=12, policy="balanced")
    again.load_state_dict(fpf.state_dict())
    assert torch.equal(again.buffer["y"], fpf.buffer["y"])
    other = FPF(networks.mlp(3, 4), capacity=12, policy="reservoir")
    with pytest.raises(ValueError, match="the state has policy 'balanced'; this buffer has 'reservoir'"):
        other.load_state_dict(fpf.state_dict())
    assert not len(other.buffer)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_inputs_by_name(mode):
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, values, mask):
            return {"logits": self.fc(values * mask)}

    fpf = FPF(Keywords(), 8, groups="all", **mode)
    fpf.observe({"values": torch.rand(4, 4), "mask": torch.ones(4, 4)}, torch.tensor([0, 1, 0, 1]))
    assert fpf.finish().names == ("fc.weight", "fc.bias")


def test_frozen_parameters_are_neither_tracked_nor_finetuned():
    model, shape = make("mlp")
    model.fc1.requires_grad_(False)
    fpf = FPF(model, 64, 30, 20)
    run(model, shape, fpf, optimizer=torch.optim.SGD(model.fc2.parameters(), 0.1), announced=True)
    assert set(fpf.sensitivities()) == {"fc2", "fc3"}
    assert [group.sensitivity is None for group in fpf.profile().groups] == [True, False, False]
    with pytest.raises(ValueError, match="group 'fc1' is frozen"):
        FPF(model, groups=["fc1"])


def test_frozen_choice_finetunes_nothing():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 5))
    model[1].eval()
    fpf = FPF(model, groups=["norm.stats"], every=3, steps=1)
    before = copy.deepcopy(model.state_dict())
    for _ in range(4):
        assert fpf.observe(torch.rand(8, 4), torch.arange(8) % 5) is None
    with pytest.warns(UserWarning, match=r"nothing was finetuned in 4 steps: norm\.stats, which is chosen, is frozen"):
        fpf.finish()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    model[1].train()
    assert fpf.finish() is not None


def test_a_group_frozen_for_a_while_is_finetuned_again():
    model, shape = make("mlp")
    fpf = FPF(model, capacity=64, every=10, steps=2, groups=["fc1", "fc3"])
    model.fc1.requires_grad_(False)
    moved = []
    for step, (x, y) in zip(range(1, 31), shifting(shape), strict=False):
        model.fc1.requires_grad_(step > 15)
        done = fpf.observe(x, y)
        if done is not None:
            moved.append(done.names)
    assert moved == [("fc3.weight", "fc3.bias"), *[("fc1.weight", "fc1.bias", "fc3.weight", "fc3.bias")] * 2]
    assert fpf.profile().chosen == ("fc1", "fc3")
    again = FPF(model, capacity=64, every=10, steps=2, groups=["fc1", "fc3"])
    again.load_state_dict(fpf.state_dict())  # without a warning
    assert again.finish().names == moved[-1]


def test_a_single_trainable_group_is_chosen():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    fpf = FPF(model, 20, steps=2, window=2)
    optimizer = torch.optim.SGD(model[2].parameters(), 0.1)
    for task in (0, 1):
        for _ in range(4):
            x, y = torch.rand(4, 4), torch.full((4,), task)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            fpf.observe(x, y)
        fpf.boundary()
    assert fpf.sensitivities() == {"head": 1.0}
    assert fpf.finish().names == ("2.weight", "2.bias")


def test_a_non_finite_loss_changes_nothing():
    model, shape = make("mlp")
    fpf = FPF(model, 64, steps=20, lr=1e20, groups="all")
    fpf.observe(*next(shifting(shape)))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NonFiniteError, match="at step [0-9]+ of 20 of the finetuning"):
        fpf.finish()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert fpf.finetunings == 0


def test_a_failed_finetuning_keeps_the_step_and_the_batch():
    model, shape = make("mlp")
    fpf = FPF(model, 64, every=2, groups="all", augment=lambda x: 1 / 0 if fpf.step else x)
    batches = shifting(shape)
    fpf.observe(*next(batches))
    with pytest.raises(ZeroDivisionError):
        fpf.observe(*next(batches))
    assert (fpf.step, fpf.buffer.seen, fpf.finetunings) == (2, 32, 0)


def test_a_threshold_that_no_group_passes_warns():
    model, shape = make("mlp")
    fpf = FPF(model, 64, steps=1, threshold=2.99)
    with pytest.warns(UserWarning, match=r"no S_g is above the threshold 2\.99; the highest is fc3"):
        run(model, shape, fpf, announced=True)


def test_an_untrained_network_warns():
    model, shape = make("mlp")
    fpf = FPF(copy.deepcopy(model), capacity=64, window=10)
    with pytest.warns(
        UserWarning, match="no parameter moved. Is this FPF around the network that the optimizer trains"
    ):
        run(model, shape, fpf, announced=True)


def test_diverged_training_is_an_error():
    model, shape = make("mlp")
    fpf = FPF(model, 64, window=2)
    for step, (x, y) in enumerate(shifting(shape, steps=4)):
        if step == 4:
            fpf.boundary()
            with torch.no_grad():
                model.fc1.weight.fill_(float("nan"))
        fpf.observe(x, y)
    with pytest.raises(ValueError, match="change of group 'fc1' is nan, .* has training diverged"):
        fpf.finish()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_network_may_change_devices():
    torch.manual_seed(0)
    model = networks.mlp(4, inputs=6, hidden=(8,))
    fpf = FPF(model, capacity=20, every=5, steps=3, window=2)
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for task in range(2):
        for _ in range(6):
            x, y = torch.rand(4, 6, device="cuda"), torch.arange(4, device="cuda") // 2 + 2 * task
            logits = model(x)
            optimizer.zero_grad()
            F.cross_entropy(logits, y.clamp(max=3)).backward()
            optimizer.step()
            fpf.observe(x, y.clamp(max=3), logits)
        fpf.boundary()
    assert fpf.buffer["x"].is_cuda
    model.cpu()
    assert fpf.finish().losses


def test_a_changed_shape_is_an_error():
    model, shape = make("mlp")
    fpf = FPF(model, 64, window=2)
    batches = shifting(shape)
    fpf.observe(*next(batches))
    model.fc3 = nn.Linear(100, 12)
    with pytest.raises(ValueError, match=r"fc3\.weight had shape \(10, 100\), now it has \(12, 100\)"):
        fpf.observe(*next(batches))


def test_a_new_head_takes_over_the_examples():
    model, shape = make("mlp")
    old = FPF(model, 64, window=2)
    batches = shifting(shape)
    old.observe(*next(batches))
    model.fc3 = nn.Linear(100, 12)
    with pytest.raises(ValueError, match=r"make a new FPF; it can take over the examples"):
        old.observe(*next(batches))
    new = FPF(model, 64, window=2, groups=["fc3"], steps=2)
    new.buffer.load_state_dict(old.buffer.state_dict())
    assert len(new.buffer) == 32
    assert new.finish().steps == 2


def test_an_added_layer_is_refused():
    model = networks.mlp(4, inputs=16, hidden=(8,))
    fpf = FPF(model, window=5)
    with pytest.raises(ValueError, match=r"the network has other\.weight, which it did not have when tracking began"):
        in_two_tasks(model, fpf, lambda: model.add_module("other", nn.Linear(8, 4)))


def test_examples_taken_over_stay_when_the_network_moves():
    model, shape = make("mlp")
    old, new = FPF(model, capacity=64), FPF(model, capacity=64)
    for x, y in list(shifting(shape))[:10]:
        old.observe(x, y)
    new.buffer.load_state_dict(old.buffer.state_dict())
    new.buffer.device = torch.device("meta")  # as if it had been made when the network was on another device
    new.settle()
    assert new.buffer.device == torch.device("cpu")
    assert torch.equal(new.buffer["x"], old.buffer["x"])
    assert new.buffer.seen == 160


def test_a_buffer_begun_in_inference_mode_stays_writable():
    model, shape = make("mlp")
    fpf, batches = FPF(model, 64), shifting(shape)
    with torch.inference_mode():
        fpf.observe(*next(batches))
    fpf.observe(*next(batches))
    assert len(fpf.buffer) == 32


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_a_finish_in_inference_mode_leaves_parameters_trainable(mode):
    model, shape = make("mlp")
    fpf = FPF(model, 64, groups="all", **mode)
    x, y = next(shifting(shape))
    fpf.observe(x, y)
    before = copy.deepcopy(model.state_dict())
    with torch.inference_mode():
        fpf.finish()
    assert not torch.equal(model.fc3.weight, before["fc3.weight"])
    F.cross_entropy(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    fpf.observe(x, y)
    fpf.finish()


def test_a_default_device_is_not_the_buffers():
    model, shape = make("mlp")
    fpf = FPF(model)
    x, y = next(shifting(shape))
    with torch.device("meta"):
        fpf.observe(x, y)
    assert torch.equal(fpf.buffer["x"], x)


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_a_finetuning_leaves_the_seed_of_unused_devices(mode):
    if torch.cuda.is_initialized():
        pytest.skip("CUDA has been used in this process: no seed waits for it")

    def waiting():
        queued = torch.cuda._lazy_seed_tracker.manual_seed_all_cb
        return [cell.cell_contents for cell in queued[0].__closure__]

    torch.manual_seed(7)
    assert waiting() == [7]
    fpf = FPF(networks.mlp(4, inputs=16, hidden=(8,)), groups="all", **mode)
    fpf.observe(torch.rand(40, 16), torch.arange(40) % 4)
    fpf.finish()
    assert waiting() == [7]


def test_remembered_examples_stay_through_the_training():
    model = networks.mlp(3, 4)
    fpf = FPF(model, capacity=30, policy="distinct")
    old = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
    fpf.remember(old, torch.zeros(12, dtype=torch.int64))
    x = torch.rand(600, 4, generator=torch.Generator().manual_seed(1))
    for epoch in range(3):
        for rows in torch.arange(600).split(20):
            fpf.observe(x[rows], rows % 2)
        held = {tuple(row) for row in fpf.buffer["x"].tolist()}
        assert len(held & {tuple(row) for row in old.tolist()}) == 10, f"after epoch {epoch}"
    assert fpf.step == 90
    with pytest.raises(ValueError, match=r"examples of shape \(5,\)"):
        fpf.remember(torch.rand(2, 5), torch.zeros(2, dtype=torch.int64))


def test_boundary_and_finish_begin_a_period():
    fpf = FPF(networks.mlp(3, 4), capacity=30, policy="distinct", steps=1, groups="all")
    fpf.observe(torch.rand(4, 4), torch.zeros(4, dtype=torch.int64))
    fpf.boundary()
    assert fpf.buffer.period == 1
    fpf.observe(torch.rand(4, 4), torch.zeros(4, dtype=torch.int64))
    fpf.finish()
    assert fpf.buffer.period == 2

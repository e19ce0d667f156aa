import copy
import random
import subprocess
import sys

import numpy
import pytest
import torch
import torch.nn.functional as F
from loops import filled, moved, state
from torch import nn

import forgetless
from forgetless import Buffer, NonFiniteError, finetune, networks
from forgetless.compute.distributed import Processes
from forgetless.compute.engine import Engine
from forgetless.repair import finetuning
from forgetless.repair.descent import Descent, Schedule
from forgetless.repair.finetuning import Finetuning
from forgetless.repair.groups import float_tensors
from forgetless.repair.objective import Objective, call
from forgetless.repair.restoring import Restorer
from forgetless.repair.settings import Finetune
from forgetless.training.contract import detect_syncs

RESNET_GROUPS = ["conv1", "block1", "block2", "block3", "block4", "bn.affine", "bn.stats", "fc"]


@pytest.mark.parametrize(
    "chosen",
    [
        *[[group] for group in RESNET_GROUPS],
        ["bn.affine", "bn.stats"],
        ["bn.affine", "bn.stats", "fc"],
        ["conv1", "bn.affine", "fc"],
        ["conv1", "block1", "block2", "block3", "bn.affine", "bn.stats", "fc"],
        RESNET_GROUPS,
    ],
    ids="+".join,
)
@pytest.mark.parametrize("training", [True, False])
def test_exactly_the_chosen_tensors_move(chosen, training, device):
    torch.manual_seed(1)
    model = networks.resnet18(5, width=4).to(device).train(training)
    parts = forgetless.groups(model)
    names = [name for group in chosen for name in parts[group]]
    before = state(model)
    finetune(model, filled(device=device), names, steps=3, lr=0.1, batch=16)
    counters = {name for name in before if name.endswith("num_batches_tracked")}
    assert moved(before, model) == set(names) | (counters if "bn.stats" in chosen else set())


def test_steps_equal_torchs_sgd_with_cosine_annealing():
    torch.manual_seed(0)
    model = networks.resnet18(5, width=4)
    twin = copy.deepcopy(model)
    buffer = filled(logits=torch.randn(64, 5))
    names = [name for group in ("conv1", "bn.affine", "bn.stats", "fc") for name in forgetless.groups(model)[group]]
    generator = torch.Generator().manual_seed(7)
    done = finetune(model, buffer, names, steps=5, lr=0.1, distill=0.5, batch=8, generator=generator)

    generator = torch.Generator().manual_seed(7)
    torch.randint(2**31, (), generator=generator)  # finetune's own draw, for augmentation and dropout
    twin.train()
    chosen = [parameter for name, parameter in twin.named_parameters() if name in names]
    optimizer = torch.optim.SGD(chosen, lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    losses = []
    for _ in range(5):
        rows = buffer.draw(8, generator)
        logits = twin(rows["x"])
        loss = F.cross_entropy(logits, rows["y"]) + 0.5 * ((logits - rows["logits"]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert done.losses == pytest.approx(losses, rel=1e-5)
    assert done.steps == 5
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chosen", [["fc3"], ["fc2", "fc3"], ["fc1"], ["fc1", "fc2", "fc3"]], ids="+".join)
@pytest.mark.parametrize("distill", [0.0, 0.5])
def test_an_engine_finetunes_an_mlp_to_the_same_bits(chosen, distill):
    """An engine computes the gradients of an MLP without autograd."""
    torch.manual_seed(1)
    plain = networks.mlp(5, inputs=12)
    quick = copy.deepcopy(plain)
    parts = forgetless.groups(plain)
    names = [name for group in chosen for name in parts[group]]
    before, losses = state(plain), []
    for model, engine in ((plain, None), (quick, Engine())):
        run = Finetuning(
            model, filled(shape=(3, 2, 2), logits=torch.ones(64, 5)), names,
            Descent.cosine(Finetune(steps=4, distill=distill, batch=16)),
            Objective(forward=call if engine is None else engine.forward), torch.Generator().manual_seed(2),
            engine=engine,
        )  # fmt: skip
        run.advance(4)
        losses.append(run.finish().losses)
    assert losses[0] == losses[1]
    assert moved(before, quick) == set(names)
    for one, other in zip(plain.parameters(), quick.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_finetuning_that_begins_again_equals_a_new_one():
    torch.manual_seed(1)
    models = [networks.resnet18(5, width=4)]
    models.append(copy.deepcopy(models[0]))
    buffer, names = filled(shape=(3, 8, 8)), sorted(state(models[0]).keys() & set(float_tensors(models[0])))
    first, second = (Descent.cosine(Finetune(steps=n, lr=lr, batch=16)) for n, lr in ((2, 0.05), (3, 0.2)))
    generators = [torch.Generator().manual_seed(2) for _ in models]
    runs = [Finetuning(m, buffer, names, first, Objective(), g) for m, g in zip(models, generators, strict=True)]
    for run in runs:
        run.advance(2)
        run.finish()
    before = state(models[0])
    runs = [runs[0].restart(second), Finetuning(models[1], buffer, names, second, Objective(), generators[1])]
    losses = []
    for run in runs:
        run.advance(3)
        losses.append(run.finish().losses)
    assert losses[0] == losses[1]
    after, expected = state(models[0]), state(models[1])
    assert all(torch.equal(after[name], expected[name]) for name in expected)
    runs[0].undo()
    assert moved(before, models[0]) == set()


def test_on_an_engine_one_that_begins_again_equals_new_ones(device):
    """On a GPU the first restart is a plain call, the second one is captured, and the others are replayed."""
    torch.manual_seed(1)
    models = [networks.resnet18(5, width=8).to(device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    buffer, names = Buffer(64, device=device, seed=0), sorted(float_tensors(models[0]))
    buffer.add({"x": torch.rand(64, 3, 8, 8, device=device), "y": torch.arange(64, device=device) % 5})
    engines = [Engine(device, deterministic=True) for _ in models]
    generators = [engine.generator(2) for engine in engines]
    run, losses = None, []
    for steps, lr in ((2, 0.05), (2, 0.2), (3, 0.1), (2, 0.1), (3, 0.05)):
        descent = Descent.cosine(Finetune(steps=steps, lr=lr, batch=16))
        with engines[0].active():
            if run is None:
                run = Finetuning(models[0], buffer, names, descent, Objective(), generators[0], engine=engines[0])
            else:
                run.restart(descent)
            run.advance(steps)
            losses.append(run.finish().losses)
        with engines[1].active():
            new = Finetuning(models[1], buffer, names, descent, Objective(), generators[1], engine=engines[1])
            new.advance(steps)
            assert new.finish().losses == losses[-1]
    after, expected = state(models[0]), state(models[1])
    assert all(torch.equal(after[name], expected[name]) for name in expected)
    assert all(run.moved()[name].abs().sum() > 0 for name in names)


@pytest.mark.parametrize("distill", [0.0, 0.5])
def test_rates_on_the_device_give_the_same_steps(distill):
    torch.manual_seed(1)
    plain = networks.resnet18(5, width=4).double()
    twin = copy.deepcopy(plain)
    parts = forgetless.groups(plain)
    names = [name for group in ("conv1", "block1", "bn.affine", "bn.stats", "fc") for name in parts[group]]
    x = torch.rand(64, 3, 8, 8, dtype=torch.float64)
    losses = []
    for model in (plain, twin):
        run = Finetuning(
            model, filled(x, logits=torch.ones(64, 5)), names,
            Descent.cosine(Finetune(steps=6, distill=distill, batch=16)), Objective(),
            torch.Generator().manual_seed(2), engine=Engine(),
        )  # fmt: skip
        if model is twin:
            run._use(Schedule(6, torch.device("cpu")))
        run.advance(6)
        losses.append(run.finish().losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, other in zip(plain.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_without_chosen_statistics_batch_norm_uses_the_running_ones():
    model = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2))
    model[0].running_mean.fill_(5.0)
    seen = []
    model[1].register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].detach()))
    buffer = filled(x=torch.full((4, 2), 6.0), y=torch.zeros(4, dtype=torch.int64))
    finetune(model, buffer, ["1.weight", "1.bias"], steps=1)
    torch.testing.assert_close(seen[0], torch.full((4, 2), 1.0), rtol=1e-4, atol=0)


def test_dropout_is_active_and_repeats_with_the_seed():
    def run(seed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 5)).eval()
        generator = torch.Generator().manual_seed(seed)
        buffer = filled(x=torch.ones(64, 4))
        return finetune(model, buffer, ["0.weight"], steps=4, batch=64, generator=generator).losses

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_user_state_is_left_as_it_was():
    torch.manual_seed(0)
    model = networks.resnet18(5, width=4)
    model.block1.eval()
    for parameter in model.block2.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    model(torch.rand(4, 3, 8, 8)).sum().backward()
    optimizer.step()
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    optimizer_state = copy.deepcopy(optimizer.state_dict())
    torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
    following = (torch.rand(1).item(), random.random(), numpy.random.rand())
    torch.manual_seed(5), random.seed(5), numpy.random.seed(5)

    def augment(x):  # draws from every global source
        return x + torch.rand(1) + random.random() + float(numpy.random.rand())

    finetune(model, filled(), forgetless.groups(model)["fc"], steps=2, augment=augment)

    assert (torch.rand(1).item(), random.random(), numpy.random.rand()) == following
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert {name: module.training for name, module in model.named_modules()} == modes
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (gradients[name] is None)
        assert parameter.grad is None or torch.equal(parameter.grad, gradients[name])
    assert str(optimizer.state_dict()) == str(optimizer_state)


def test_what_is_frozen_stays_frozen():
    model = networks.mlp(5, inputs=4, hidden=(3,))
    model.fc1.weight.requires_grad_(False)
    before = state(model)
    done = finetune(model, filled(x=torch.rand(64, 4)), list(before), steps=2)
    assert moved(before, model) == {"fc1.bias", "fc2.weight", "fc2.bias"} == set(done.names)
    with pytest.raises(ValueError, match=r"nothing to finetune: of the 1 tensors named, all are frozen"):
        finetune(model, filled(x=torch.rand(64, 4)), ["fc1.weight"], steps=2)


@pytest.mark.parametrize("groups", [["fc"], ["bn.affine", "bn.stats", "fc"]])
def test_a_non_finite_loss_restores_the_network(groups):
    model = networks.resnet18(5, width=4)
    names = [name for group in groups for name in forgetless.groups(model)[group]]
    before = state(model)
    calls = []

    def loss(logits, y):
        calls.append(1)
        return F.cross_entropy(logits, y) * (float("nan") if len(calls) == 4 else 1.0)

    with pytest.raises(NonFiniteError, match="became nan at step 4 of 6 .* as it was before it. Try a smaller"):
        finetune(model, filled(), names, steps=6, loss=loss)
    assert moved(before, model) == set()


def test_weights_that_end_infinite_are_an_error():
    model = nn.Sequential(nn.Linear(4, 5))
    before = state(model)
    with pytest.raises(NonFiniteError, match=r"0\.weight became infinite or NaN at the last of 1 steps"):
        finetune(model, filled(x=1e30 * torch.ones(64, 4), logits=None), ["0.weight"], steps=1, lr=1e30)
    assert moved(before, model) == set()


def test_an_interruption_restores_the_network():
    model = networks.mlp(5, inputs=4)
    before = state(model)
    calls = []

    def augment(x):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt):
        finetune(model, filled(x=torch.rand(64, 4)), list(before), steps=5, augment=augment)
    assert moved(before, model) == set()


@pytest.mark.parametrize(("owner", "method"), [(finetuning, "norm"), (Restorer, "restore_still")])
def test_an_interrupt_at_the_end_restores_the_network(owner, method, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    buffer = Buffer(8, seed=0)
    buffer.add({"x": torch.rand(8, 4), "y": torch.randint(2, (8,))})
    before = copy.deepcopy(model.state_dict())

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        finetune(model, buffer, ["2.weight"], steps=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_inside_no_grad_it_still_finetunes():
    model = networks.mlp(5, inputs=4)
    before = state(model)
    with torch.no_grad():
        finetune(model, filled(x=torch.rand(64, 4)), ["fc3.bias"], steps=1)
    assert moved(before, model) == {"fc3.bias"}


def test_in_inference_mode_it_still_finetunes():
    model = networks.mlp(5, inputs=4)
    before, buffer = state(model), filled(x=torch.rand(64, 4))
    with torch.inference_mode():
        finetune(model, buffer, ["fc3.bias"], steps=1)
    assert moved(before, model) == {"fc3.bias"}


def test_a_step_does_not_synchronise():
    def reads(steps):
        model = networks.resnet18(5, width=4)
        names = [name for group in forgetless.groups(model).values() for name in group]
        buffer = filled(logits=torch.randn(64, 5))
        with detect_syncs() as syncs:
            finetune(model, buffer, names, steps=steps, distill=0.1)
        return len(syncs)

    assert reads(2) == reads(9) > 0


class Doubled(Processes):
    """Two processes with the same examples, whose mean is doubled to be seen."""

    def __init__(self):
        self.count, self.rank = 2, 0

    def mean_over_examples(self, values, examples):
        assert not any(value.is_sparse for value in values)
        return [2 * value for value in values]

    def mean(self, values):
        return values


def test_sparse_gradients_are_exchanged_between_processes():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(24, 3))
    sparse = copy.deepcopy(dense)
    sparse[0].sparse = True
    buffer = Buffer(8)
    buffer.add({"x": torch.randint(20, (8, 3)), "y": torch.arange(8) % 3})
    for model in (dense, sparse):
        generator = torch.Generator().manual_seed(1)
        finetune(model, buffer, ["0.weight"], steps=2, generator=generator, processes=Doubled())
    torch.testing.assert_close(sparse[0].weight, dense[0].weight)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_first_finetuning_on_a_gpu_does_not_warn():
    code = """
import torch
from forgetless import Buffer, finetune
buffer = Buffer(8)
buffer.add({"x": torch.rand(8, 4).cuda(), "y": torch.zeros(8, dtype=torch.int64).cuda()})
model = torch.nn.Linear(4, 2).cuda()
finetune(model, buffer, ["weight"], steps=1, lr=0.1, batch=4)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)

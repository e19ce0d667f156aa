import copy
import random
import subprocess
import sys
import types

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import forgetless
from forgetless import Buffer, NonFiniteError, finetune, networks, only
from forgetless.compute.engine import Engine
from forgetless.repair.finetune import Finetuning, _Schedule, call
from forgetless.training.contract import SyncDetector


def filled(x=None, y=None, logits=None, classes=5, shape=(3, 8, 8), device="cpu"):
    generator = torch.Generator().manual_seed(0)
    buffer = Buffer(64)
    x = torch.rand(64, *shape, generator=generator).to(device) if x is None else x
    y = torch.randint(classes, (len(x),), generator=generator).to(device) if y is None else y
    buffer.add({"x": x, "y": y} | ({} if logits is None else {"logits": logits}))
    return buffer


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def moved(before, model):
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


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


def test_the_steps_are_those_of_torchs_sgd_with_cosine_annealing():
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
def test_in_a_run_a_perceptron_is_finetuned_to_the_same_bits(chosen, distill):
    """With an engine its gradients are written out, without one they are autograd's."""
    torch.manual_seed(1)
    plain = networks.mlp(5, inputs=12)
    quick = copy.deepcopy(plain)
    parts = forgetless.groups(plain)
    names = [name for group in chosen for name in parts[group]]
    before, losses = state(plain), []
    for model, engine in ((plain, None), (quick, Engine())):
        run = Finetuning(
            model, filled(shape=(3, 2, 2), logits=torch.ones(64, 5)), names, 4, 0.1, distill, batch=16, augment=None,
            forward=call if engine is None else engine.forward, generator=torch.Generator().manual_seed(2),
            engine=engine,
        )  # fmt: skip
        run.advance(4)
        losses.append(run.finish().losses)
    assert losses[0] == losses[1]
    assert moved(before, quick) == set(names)
    for one, other in zip(plain.parameters(), quick.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("distill", [0.0, 0.5])
def test_with_the_rates_on_the_device_the_steps_are_the_same(distill):
    torch.manual_seed(1)
    plain = networks.resnet18(5, width=4).double()
    twin = copy.deepcopy(plain)
    parts = forgetless.groups(plain)
    names = [name for group in ("conv1", "block1", "bn.affine", "bn.stats", "fc") for name in parts[group]]
    x = torch.rand(64, 3, 8, 8, dtype=torch.float64)
    losses = []
    for model in (plain, twin):
        run = Finetuning(
            model, filled(x, logits=torch.ones(64, 5)), names, 6, 0.1, distill, batch=16, augment=None, forward=call,
            generator=torch.Generator().manual_seed(2), engine=Engine(),
        )  # fmt: skip
        if model is twin:
            run._schedule = _Schedule(6, torch.device("cpu"))
            run._schedule.begin([run._rate(step) for step in range(6)])
            run._losses = run._schedule.losses
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


def test_dropout_is_active_and_its_randomness_repeats_with_the_seed():
    def run(seed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 5)).eval()
        generator = torch.Generator().manual_seed(seed)
        buffer = filled(x=torch.ones(64, 4))
        return finetune(model, buffer, ["0.weight"], steps=4, batch=64, generator=generator).losses

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_all_the_user_has_is_left_as_it_was():
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


def test_only_restores_flags_and_modes_after_an_error():
    model = networks.resnet18(5, width=4).eval()
    with pytest.raises(KeyboardInterrupt), only(model, ["fc.weight"]):
        assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["fc.weight"]
        assert not model.bn1.training
        raise KeyboardInterrupt
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("groups", [["fc"], ["bn.affine", "bn.stats", "fc"]])
def test_a_loss_that_is_not_finite_names_the_step_and_restores_the_network(groups):
    model = networks.resnet18(5, width=4)
    names = [name for group in groups for name in forgetless.groups(model)[group]]
    before = state(model)
    calls = []

    def loss(logits, y):
        calls.append(1)
        return F.cross_entropy(logits, y) * (float("nan") if len(calls) == 4 else 1.0)

    with pytest.raises(NonFiniteError, match="loss became nan at step 4 of 6 .* as it was before it. Try a smaller lr"):
        finetune(model, filled(), names, steps=6, loss=loss)
    assert moved(before, model) == set()


def test_weights_that_end_infinite_are_found_though_every_loss_was_finite():
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


def test_inside_no_grad_it_still_finetunes():
    model = networks.mlp(5, inputs=4)
    before = state(model)
    with torch.no_grad():
        finetune(model, filled(x=torch.rand(64, 4)), ["fc3.bias"], steps=1)
    assert moved(before, model) == {"fc3.bias"}


def test_inputs_by_name_become_keyword_arguments_and_logits_are_found_in_a_mapping():
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, values, mask):
            return {"logits": self.fc(values * mask)}

    model = Keywords()
    buffer = Buffer(8)
    y = torch.zeros(8, dtype=torch.int64)
    buffer.add({"x.values": torch.rand(8, 4), "x.mask": torch.ones(8, 4), "y": y})
    first, *_, last = finetune(model, buffer, ["fc.weight", "fc.bias"], steps=20, lr=0.5).losses
    assert last < first / 2


def test_a_network_that_gives_no_tensor_is_refused():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), None

    with pytest.raises(TypeError, match=r"returned tuple, not a tensor of logits: give forward="):
        finetune(Pair(4, 5), filled(x=torch.rand(64, 4)), ["weight"])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"steps": 0}, "steps is 0; it must be a whole number of 1 or more"),
        ({"batch": 0}, "batch is 0; it must be a whole number"),
        ({"lr": 0.0}, "lr is 0.0; it must be a finite number above 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"distill": -1.0}, "distill is -1.0; it must be a finite number of 0 or more"),
        ({"distill": 0.5}, "distill is 0.5, which needs the column 'logits'; the buffer has x, y"),
        ({"autocast": torch.float16}, "use torch.bfloat16"),
        ({"names": ["fc9.weight"]}, "no parameter or float buffer named 'fc9.weight'"),
    ],
)
def test_bad_settings_are_refused_before_anything_moves(settings, match):
    model = networks.mlp(5, inputs=4)
    before = state(model)
    with pytest.raises(ValueError, match=match):
        finetune(model, filled(x=torch.rand(64, 4)), **{"names": list(before), **settings})
    assert moved(before, model) == set()


def test_labels_out_of_range_are_refused_before_anything_moves():
    model = networks.mlp(5, inputs=4)
    before = state(model)
    buffer = filled(x=torch.rand(64, 4), y=torch.full((64,), 5))
    with pytest.raises(ValueError, match="labels from 5 to 5; the network has 5 outputs, so they must be 0 to 4"):
        finetune(model, buffer, list(before))
    assert moved(before, model) == set()


def test_an_empty_buffer_is_refused():
    with pytest.raises(ValueError, match="the buffer is empty"):
        finetune(networks.mlp(5), Buffer(4), ["fc1.weight"])


def test_half_of_a_layers_statistics_is_refused():
    model = networks.resnet18(5, width=4)
    with pytest.raises(ValueError, match=r"statistics of bn1 move together: also name bn1\.running_var"):
        finetune(model, filled(), ["bn1.running_mean"])


def test_the_host_does_not_wait_in_a_step():
    def reads(steps):
        model = networks.resnet18(5, width=4)
        names = [name for group in forgetless.groups(model).values() for name in group]
        buffer = filled(logits=torch.randn(64, 5))
        with SyncDetector() as counter:
            finetune(model, buffer, names, steps=steps, distill=0.1)
        return len(counter.found)

    assert reads(2) == reads(9) > 0


def test_inside_a_users_autocast_the_weights_used_are_not_stale():
    torch.manual_seed(0)
    model = networks.mlp(5, inputs=4)
    buffer = filled(x=torch.eye(4).repeat(16, 1), y=torch.arange(4).repeat(16))
    names = [name for name, _ in model.named_parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.rand(2, 4))  # fills the cache of casts
        first, *_, last = finetune(model, buffer, names, steps=100, lr=0.5).losses
    assert last < first / 4


def test_a_frozen_part_in_evaluation_mode_stays_so_and_its_statistics_stay():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 5))
    seen = []
    backbone[2].register_forward_hook(lambda module, *_: seen.append(module.training))
    for training in (True, False):
        model.train(training)
        backbone.eval()
        fpf = forgetless.FPF(model, groups="all", steps=2)
        before = state(model)
        fpf.observe(torch.rand(16, 4), torch.zeros(16, dtype=torch.int64))
        fpf.finish()
        assert not any(name.startswith("0.") for name in moved(before, model))
        assert "2.running_mean" in moved(before, model)
    assert seen == [False] * 4


def test_counters_and_other_buffers_of_a_users_module_stay():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 5)
            self.register_buffer("calls", torch.tensor(0))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            if self.training:
                self.calls += 1
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            return self.fc(x) if self.training else self.fc(x).softmax(1)

    model = Counting()
    before = state(model)
    first = finetune(model, filled(x=torch.rand(64, 4)), ["fc.weight"], steps=3, batch=64).losses[0]
    assert moved(before, model) == {"fc.weight"}
    assert first == pytest.approx(1.6, abs=0.3)  # of logits, as in training mode


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_labels_of_any_integer_dtype(dtype):
    buffer = filled(x=torch.rand(64, 4), y=torch.randint(5, (64,)).to(dtype))
    finetune(networks.mlp(5, inputs=4), buffer, ["fc3.bias"], steps=1)


def test_labels_that_cross_entropy_ignores_are_no_error():
    y = torch.randint(5, (64,))
    y[::2] = -100
    finetune(networks.mlp(5, inputs=4), filled(x=torch.rand(64, 4), y=y), ["fc3.bias"], steps=1)


def test_things_that_cannot_be_finetuned_say_so():
    model = networks.mlp(5, inputs=4)
    buffer = filled(x=torch.rand(64, 4), logits=torch.zeros(64, 7))
    with pytest.raises(ValueError, match="names is empty"):
        finetune(model, buffer, [])
    with pytest.raises(ValueError, match=r"stored logits have shape \(7,\), the network's have \(5,\)"):
        finetune(model, buffer, ["fc3.bias"], distill=0.1)
    with pytest.raises(ValueError, match=r"loss gave a tensor of shape \(32,\)"):
        finetune(model, buffer, ["fc3.bias"], loss=lambda logits, y: F.cross_entropy(logits, y, reduction="none"))
    with pytest.raises(ValueError, match=r"output has shape \(32,\); it must be \(batch, classes\)"):
        finetune(model, buffer, ["fc3.bias"], forward=lambda model, x: model(x)[:, 0])
    with pytest.raises(ValueError, match="augment or forward made 10 rows of logits of 32 examples"):
        finetune(model, buffer, ["fc3.bias"], augment=lambda x: x[:10])
    with pytest.raises(ValueError, match="augment or forward made 1 rows of logits of 32 examples"):
        matching = filled(x=torch.rand(64, 4), logits=torch.zeros(64, 5))  # of which one row would be taken for all
        finetune(
            model, matching, ["fc3.bias"], distill=0.1, forward=lambda model, x: model(x[:1]),
            loss=lambda logits, y: logits.square().mean(),
        )  # fmt: skip
    with pytest.raises(TypeError, match="augment gave None"):
        finetune(model, buffer, ["fc3.bias"], augment=lambda x: None)


def test_in_inference_mode_it_still_finetunes():
    model = networks.mlp(5, inputs=4)
    before, buffer = state(model), filled(x=torch.rand(64, 4))
    with torch.inference_mode():
        finetune(model, buffer, ["fc3.bias"], steps=1)
    assert moved(before, model) == {"fc3.bias"}


def test_what_cannot_be_finetuned_with_is_named():
    network, full, other, empty = nn.Linear(4, 3), Buffer(8, seed=0), Buffer(8, seed=0), Buffer(8, seed=0)
    full.add({"x": torch.rand(8, 4), "y": torch.randint(3, (8,))})
    other.add({"x": torch.rand(8, 4)})
    with pytest.raises(ValueError, match="finetuning needs the column 'y'; the buffer has x"):
        finetune(network, other, ["weight"])
    with pytest.raises(ValueError, match="the buffer is empty: add examples first"):
        finetune(network, empty, ["weight"])
    with pytest.raises(ValueError, match="loss is 'mse'; it must be a function"):
        finetune(network, full, ["weight"], loss="mse")
    with pytest.raises(TypeError, match="a batch is a Tensor; it must be a mapping"):
        full.add(torch.rand(8, 4))
    assert finetune(network, full, "weight", steps=1).names == ("weight",)
    assert finetune(network, full, (name for name in ["bias"]), steps=1).names == ("bias",)


def test_the_name_of_a_group_is_told_from_that_of_a_tensor():
    model = networks.mlp(5, inputs=12)
    with pytest.raises(ValueError, match=r"named 'fc3'; it is a group: forgetless.groups\(model\)\['fc3'\]"):
        finetune(model, filled(shape=(3, 2, 2)), ["fc3"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_as_the_first_thing_on_a_gpu_torch_does_not_warn():
    code = """
import torch
from forgetless import Buffer, finetune
buffer = Buffer(8)
buffer.add({"x": torch.rand(8, 4).cuda(), "y": torch.zeros(8, dtype=torch.int64).cuda()})
model = torch.nn.Linear(4, 2).cuda()
finetune(model, buffer, ["weight"], steps=1, lr=0.1, batch=4)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_what_is_no_buffer_or_has_no_inputs_is_refused():
    network = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"buffer is a list; it must be a forgetless\.Buffer"):
        finetune(network, [(torch.rand(4, 2), torch.zeros(4))], ["weight"])
    buffer = Buffer(4)
    buffer.add({"image": torch.rand(4, 2), "y": torch.arange(4) % 2})
    with pytest.raises(ValueError, match=r"needs the inputs as the column 'x', .*; the buffer has image, y"):
        finetune(network, buffer, ["weight"])


def test_a_misspelt_name_is_told_where_groups_cannot_be():
    network = nn.GRU(2, 2)  # which has no head that groups could recognise
    with pytest.raises(ValueError, match="the network has no parameter or float buffer named 'weigth'"):
        forgetless.repair.finetune.check_names(network, ["weigth"])


@pytest.mark.parametrize("kind", ["new", "old"])
def test_a_spectral_norm_follows_the_weight_that_is_finetuned(kind):
    """Its vectors move with the weight: the norm stays 1, also when training goes on."""
    torch.manual_seed(0)
    norm = nn.utils.parametrizations.spectral_norm if kind == "new" else nn.utils.spectral_norm
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), norm(nn.Linear(16, 4)))
    for _ in range(50):
        model(torch.rand(8, 8))
    buffer = Buffer(32, seed=0)
    buffer.add({"x": torch.rand(32, 8), "y": torch.randint(4, (32,))})
    name = "2.parametrizations.weight.original" if kind == "new" else "2.weight_orig"
    vectors = {n: b.clone() for n, b in model.named_buffers()}
    finetune(model, buffer, [name], steps=100, lr=0.5)
    assert all(not torch.equal(b, vectors[n]) for n, b in model.named_buffers())
    model.eval()
    model(torch.rand(8, 8))
    assert torch.linalg.matrix_norm(model[2].weight, 2).item() == pytest.approx(1, abs=0.02)
    finetuned = {n: t.clone() for n, t in model.state_dict().items()}
    finetune(model, buffer, ["0.weight"], steps=2)  # another weight: they stay
    assert all(torch.equal(b, finetuned[n]) for n, b in model.named_buffers())


@pytest.mark.parametrize("where", ["_check_finite", "_put_into"])
def test_an_interrupt_at_the_end_puts_the_network_back(where, monkeypatch):
    from forgetless.repair import finetune as finetuning

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    buffer = Buffer(8, seed=0)
    buffer.add({"x": torch.rand(8, 4), "y": torch.randint(2, (8,))})
    before = copy.deepcopy(model.state_dict())
    real, calls = getattr(finetuning, where), []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(finetuning, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        finetune(model, buffer, ["2.weight"], steps=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_cache_made_in_inference_mode_is_put_back_too():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)
            self.register_buffer("mask", torch.zeros(0), persistent=False)

        def forward(self, x):
            if len(self.mask) != x.shape[1]:
                self.mask = torch.ones(x.shape[1])
            return self.fc(x * self.mask)

    model = Masked()
    with torch.inference_mode():
        model(torch.rand(2, 6))
    buffer = Buffer(8, seed=0)
    buffer.add({"x": torch.rand(8, 6), "y": torch.randint(3, (8,))})
    finetune(model, buffer, ["fc.weight"], steps=2)
    assert model.mask.tolist() == [1] * 6


def test_a_buffer_that_was_not_set_is_not_set_afterwards():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(6, 3)
            self.register_buffer("calls", None)

        def forward(self, x):
            self.calls = torch.ones(()) if self.calls is None else self.calls + 1
            return super().forward(x)

    model = Counting()
    buffer = Buffer(8, seed=0)
    buffer.add({"x": torch.rand(8, 6), "y": torch.randint(3, (8,))})
    finetune(model, buffer, ["weight"], steps=2)
    assert model.calls is None
    model(torch.rand(2, 6))
    finetune(model, buffer, ["weight"], steps=2)
    assert model.calls == 1


def test_a_network_in_evaluation_mode_within_its_wrapper_is_finetuned_in_training_mode():
    seen = []
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    network[1].register_forward_hook(lambda module, *_: seen.append(module.training))
    model = nn.DataParallel(network)
    model.module.eval()
    buffer = Buffer(8, seed=0)
    buffer.add({"x": torch.rand(8, 4), "y": torch.randint(2, (8,))})
    finetune(model, buffer, ["2.weight"], steps=1)
    assert seen == [True]
    assert (model.training, network.training) == (True, False)


def test_a_class_that_uint8_writes_like_no_label_is_one():
    """−100 in eight bits is 156."""
    plain = types.SimpleNamespace(_loss=None, _distill=0.0)
    assert Finetuning._weight(plain, torch.tensor([156, 3], dtype=torch.uint8)) == 2
    assert Finetuning._weight(plain, torch.tensor([156, -100], dtype=torch.int16)) == 1


def test_sparse_gradients_are_exchanged_with_other_processes():
    exchanged = types.SimpleNamespace(
        mean_over_examples=lambda values, examples: [2 * value.flatten() for value in values]
    )
    weight = nn.Parameter(torch.zeros(3, 1))
    sparse = torch.tensor([[0.0], [5.0], [0.0]]).to_sparse()
    _, (found,) = Finetuning._together(exchanged, torch.tensor(1.0), [weight], [sparse], 4)
    assert found.tolist() == [0, 10, 0]

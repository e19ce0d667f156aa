import pytest
import torch
from loops import shifting

from forgetless import Buffer, Finetune, networks
from forgetless.repair.objective import Objective
from forgetless.repair.repairer import Repairer
from forgetless.repair.settings import Tracking


@pytest.fixture
def model():
    torch.manual_seed(0)
    return networks.mlp(4, inputs=16)


@pytest.fixture
def buffer():
    buffer = Buffer(32)
    for x, y in shifting((16,), steps=4):
        buffer.add({"x": x, "y": y})
    return buffer


def move(model, **by):
    """Add a number to all elements of these layers."""
    with torch.no_grad():
        for layer, value in by.items():
            for parameter in getattr(model, layer).parameters():
                parameter.add_(value)


def test_a_repair_is_due_every_tau_steps(model):
    repairer = Repairer(model, Finetune.k_fpf(every=3), Objective(), tracking=Tracking(window=2))
    assert [repairer.advance() for _ in range(7)] == [False, False, True, False, False, True, False]
    assert repairer.tracker.epoch == 3


def test_the_choice_follows_the_changes_between_tasks(model):
    repairer = Repairer(model, Finetune(), Objective())
    repairer.tracker.mark()
    repairer.tracker.boundary()
    move(model, fc1=0.1, fc2=0.1, fc3=0.4)
    repairer.tracker.mark()
    scores = repairer.selection.scores(repairer.tracker.task_changes())
    assert scores == pytest.approx({"fc1": 0.5, "fc2": 0.5, "fc3": 2.0}, rel=1e-5)
    choice = repairer.choose()
    assert (choice.groups, choice.movable) == (("fc3",), ("fc3",))
    assert choice.names == ("fc3.weight", "fc3.bias")


def test_a_frozen_group_stays_chosen_but_is_not_moved(model):
    repairer = Repairer(model, Finetune(groups=("fc1", "fc3")), Objective())
    model.fc1.requires_grad_(False)
    choice = repairer.choose()
    assert (choice.groups, choice.movable) == (("fc1", "fc3"), ("fc3",))


@pytest.mark.parametrize("leaves_out", [True, False])
def test_a_finetuning_is_no_change_of_training(model, buffer, leaves_out):
    """A user's loop starts the window again after a finetuning; the benchmark leaves out what it moved."""
    repairer = Repairer(model, Finetune(steps=3, groups=("fc3",)), Objective())
    repairer.tracker.start()
    move(model, fc1=0.5)
    run = repairer.begin(repairer.choose().names, buffer, torch.Generator().manual_seed(0))
    run.advance(3)
    run.finish()
    repairer.accept(("fc3",), run.moved() if leaves_out else None)
    move(model, fc2=0.25)
    changes = repairer.tracker.by_tensor(repairer.tracker.mark())
    before = 0.5 if leaves_out else 0.0
    assert changes["fc1.bias"] == pytest.approx(before)
    assert changes["fc2.bias"] == pytest.approx(0.25)
    assert changes["fc3.bias"] == pytest.approx(0.0, abs=1e-6)


def test_a_whole_finetuning_equals_its_parts(model, buffer):
    outcomes = []
    for whole in (True, False):
        torch.manual_seed(0)
        network = networks.mlp(4, inputs=16)
        repairer = Repairer(network, Finetune(steps=4, groups="all"), Objective())
        generator = torch.Generator().manual_seed(3)
        if whole:
            repairer.finetune(buffer, generator)
        else:
            torch.randint(2**31, (), generator=generator)  # the seed of dropout and augmentation
            run = repairer.begin(repairer.choose().names, buffer, generator)
            while run.left:
                run.advance(1)
            run.finish()
        outcomes.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
    assert torch.equal(*outcomes)

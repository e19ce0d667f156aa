import dataclasses
import time
from functools import partial

import pytest
import torch

from forgetless import Finetune, NonFiniteError, networks
from forgetless.methods.er import ER
from forgetless.methods.gdumb import GDumb
from forgetless.methods.icarl import ICaRL
from forgetless.methods.packnet import PackNet
from forgetless.methods.sgd import SGD
from forgetless.networks.seed import with_seed
from forgetless.training.events import Repaired, Stepped, TaskEnded
from forgetless.training.loop import train
from helpers import FINETUNE, K_FPF, all_equal, run_small, small_network, small_stream

STREAM = small_stream(per_class=30)


ENDINGS = {
    "fpf+er": (ER, FINETUNE),
    "fpf+icarl": (ICaRL, FINETUNE),
    "fpf+packnet": (partial(PackNet, keep=0.5), Finetune(steps=20, lr=0.3, batch=12, groups=("fc2",))),
    "k-fpf-kd": (SGD, Finetune.k_fpf(15, steps=10, lr=0.3, batch=12, distill=0.1)),
    "gdumb": (partial(GDumb, memory_epochs=8), None),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_anytime_accuracies_equal_those_of_a_shorter_stream(name, device):
    method, finetune = ENDINGS[name]
    how = {"finetune": finetune, "device": device}
    events, result = run_small(method(), anytime=True, **how)
    shorter = dataclasses.replace(STREAM, tasks=STREAM.tasks[:2])
    assert result.accuracy_matrix[1][:2] == run_small(method(), shorter, **how)[1].accuracy_matrix[1]
    _, plain = run_small(method(), **how)
    if device == "cpu":  # with another device's random numbers the 15 images may be told apart alike
        assert result.accuracy_matrix[1] != plain.accuracy_matrix[1]
    for same in ("before_finetuning", "losses", "epoch_changes", "task_changes", "finetunings", "flops", "steps"):
        assert getattr(result, same) == getattr(plain, same), same
    assert result.accuracy_matrix[-1] == plain.accuracy_matrix[-1]
    assert all_equal(result.network.state_dict().values(), plain.network.state_dict().values())
    assert [e for e in events if isinstance(e, Repaired)] == list(result.finetunings)


def test_anytime_accuracies_survive_a_resume():
    how = {"finetune": K_FPF, "anytime": True}
    settings = {"epochs": 2, "batch": 6, "lr": 0.2, "replay": 6, "buffer": 36, **how}
    under_way = train(STREAM, SGD(), small_network(), **settings)
    ended = 0
    for event in under_way:
        ended += isinstance(event, TaskEnded)
        if ended == 2 and isinstance(event, Stepped) and (state := under_way.state_dict()) is not None:
            break
    under_way.close()
    _, again = run_small(state=state, **how)
    assert again.accuracy_matrix == run_small(**how)[1].accuracy_matrix


def test_no_state_can_be_saved_in_an_anytime_evaluation():
    under_way = train(STREAM, SGD(), small_network(), batch=6, buffer=36, finetune=FINETUNE, anytime=True)
    before = torch.get_rng_state()
    for event in under_way:
        if isinstance(event, Stepped) and event.step == 20 and under_way.state_dict() is None:
            break  # in the finetuning after the second task, whose last step is the 20th
    else:
        pytest.fail("there was no finetuning after the second task")
    under_way.close()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_method_that_diverges_in_finish_is_an_error():
    method = GDumb(memory_epochs=10, lr_high=1e20)
    with pytest.raises(NonFiniteError, match="test images of task 1 of 'small' are NaN"):
        list(train(small_stream(), method, networks.mlp(6, inputs=4), batch=6, buffer=36))


@pytest.mark.parametrize("anytime", [False, True])
def test_a_run_can_resume_inside_finish_of_gdumb(anytime):
    def start(state=None):
        network = with_seed(lambda: networks.mlp(6, inputs=4), 0)
        method = GDumb(memory_epochs=5)
        return train(
            small_stream(), method, network, batch=6, buffer=36, finetune=Finetune(groups=("fc3",), steps=3, batch=12),
            anytime=anytime, seed=1, state=state,
        )  # fmt: skip

    whole, states = start(), []
    for event in whole:
        state = whole.state_dict()
        if isinstance(event, Stepped) and state is not None and state["finishing"]:
            states.append(state)
    assert len(states) == 5
    for state in states:
        again = start(state)
        *_, last = again
        assert last.result.accuracy_matrix == event.result.accuracy_matrix
        assert last.result.flops == event.result.flops
        assert all_equal(again.network.parameters(), whole.network.parameters())


def test_a_state_holds_the_seconds_of_the_current_phase(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    going = train(STREAM, SGD(), small_network(), epochs=2, batch=6, lr=0.2, buffer=36, finetune=K_FPF)
    seen = []
    for event in going:
        if isinstance(event, Stepped):
            now[0] += 1.0  # after each ten steps, of the method or of a finetuning
            seen.append(going.state_dict()["seconds"])
    assert [found["total"] for found in seen] == [float(i + 1) for i in range(len(seen))]
    assert all(found["train"] + found["finetune"] == found["total"] for found in seen)
    assert seen[-1]["finetune"] == 3.0  # finetunings of ten steps: at step 45, at 60 and at the end
    assert seen[-1]["train"] == 6.0


class Holder(ER):
    """Does something at the end, and holds what cannot be put back."""

    def begin(self, learner):
        super().begin(learner)
        self.held = {1, 2}

    def finish(self, learner):
        pass


def test_anytime_refuses_a_method_it_cannot_restore():
    with pytest.raises(ValueError, match="anytime is True, but .* cannot be undone: Holder holds held, a set"):
        next(train(small_stream(), Holder(), networks.mlp(6, inputs=4), batch=6, buffer=12, anytime=True))

"""FPF as a callback of Lightning."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from two_tasks import BUDGET, PROGRAMS, SETTINGS, TASKS, by_hand, data, import_example, in_turn, network

from forgetless import FPF
from helpers import all_equal, in_processes


def module(lightning, logits=True):
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, number):
            out = self(batch[0])
            loss = F.cross_entropy(out, batch[1])
            return {"loss": loss, "logits": out} if logits else loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def trainer(callback, folder, epochs=1, **settings):
    from lightning.pytorch import Trainer

    return Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[callback], logger=False, default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, **{"enable_checkpointing": False, **settings},
    )  # fmt: skip


def module_and_fpf(lightning, common=SETTINGS, **settings):
    model = module(lightning)
    return model, FPF(model.network, **common, **settings)


def loader(task, size=5):
    x, y = data()
    rows = slice(30 * task, 30 * task + 30)
    return DataLoader(TensorDataset(x[rows], y[rows]), batch_size=size)


def test_k_fpf_gains_30_points_on_digits_with_lightning(lightning, monkeypatch):
    digits = import_example("lightning_digits", monkeypatch)
    assert digits.run("k-FPF")[0] >= digits.run("plain")[0] + 30


@pytest.mark.parametrize("common", [SETTINGS, BUDGET], ids=["schedule", "budget"])
@pytest.mark.parametrize(("accumulate", "distill"), [(1, 0.0), (2, 0.5)])
def test_lightning_trains_like_a_plain_loop(lightning, tmp_path, accumulate, distill, common):
    model, fpf = module_and_fpf(lightning, common, distill=distill)
    callback = lightning.FPFCallback(fpf)
    for task in range(TASKS):
        fitting = trainer(callback, tmp_path, epochs=3, accumulate_grad_batches=accumulate)
        fitting.fit(model, loader(task, 10 // accumulate))
    assert fpf.step == 2 * 3 * 3
    assert fpf.shifts == [9]
    fpf.finish()
    weights = nn.utils.parameters_to_vector(model.network.parameters())
    expected = by_hand(in_turn(3, size=10), common, distill=distill)
    torch.testing.assert_close(weights, expected, rtol=0, atol=0 if accumulate == 1 else 1e-5)


@pytest.mark.parametrize("common", [SETTINGS | {"groups": "all"}, BUDGET], ids=["schedule", "budget"])
def test_lightning_resumes_from_its_checkpoint(lightning, tmp_path, common):
    model, fpf = module_and_fpf(lightning, common)
    trainer(lightning.FPFCallback(fpf), tmp_path, epochs=4).fit(model, loader(0))
    half, half_fpf = module_and_fpf(lightning, common)
    first = trainer(lightning.FPFCallback(half_fpf), tmp_path, epochs=2)
    first.fit(half, loader(0))
    first.save_checkpoint(tmp_path / "half.ckpt")
    again, again_fpf = module_and_fpf(lightning, common)
    second = trainer(lightning.FPFCallback(again_fpf), tmp_path, epochs=4)
    second.fit(again, loader(0), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert again_fpf.step == fpf.step == 24
    assert again_fpf.finetunings == fpf.finetunings >= 1
    assert torch.equal(again_fpf.buffer["x"], fpf.buffer["x"])
    assert all_equal(again.parameters(), model.parameters())


def test_lightning_resumes_in_two_processes(lightning, tmp_path):
    program = PROGRAMS / "lightning_together.py"
    in_processes(1, program, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for found in (first, second):
        assert found["same weights"]
        assert found["same buffer"]
        assert found["steps"] == [24, 24]  # 60 examples, 5 in each process at a time, 4 epochs
        assert found["finetunings"] == [5, 5]
        assert found["capacity"] == 20
    assert first["kept"] != second["kept"]


def test_a_finished_checkpoint_restores_its_state_too(lightning, tmp_path):
    """``fit`` then trains nothing, and the next task continues from there."""
    model, fpf = module_and_fpf(lightning)
    first = trainer(lightning.FPFCallback(fpf), tmp_path)
    first.fit(model, loader(0))
    first.save_checkpoint(tmp_path / "ended.ckpt")
    again, again_fpf = module_and_fpf(lightning)
    trainer(lightning.FPFCallback(again_fpf), tmp_path).fit(
        again, loader(0), ckpt_path=tmp_path / "ended.ckpt", weights_only=True
    )
    assert again_fpf.step == fpf.step == 6
    assert torch.equal(again_fpf.buffer["x"], fpf.buffer["x"])
    for one, its_fpf in ((model, fpf), (again, again_fpf)):
        trainer(lightning.FPFCallback(its_fpf), tmp_path).fit(one, loader(1))
    assert again_fpf.shifts == fpf.shifts == [6]
    assert all_equal(again.parameters(), model.parameters())


def test_a_second_fit_is_a_new_task(lightning, tmp_path):
    model, fpf = module_and_fpf(lightning)
    fitting = trainer(lightning.FPFCallback(fpf), tmp_path, epochs=2)
    fitting.fit(model, loader(0))
    fitting.fit_loop.max_epochs = 4
    fitting.fit(model, loader(1))
    assert fpf.shifts == [12]


def test_testing_a_checkpoint_leaves_fpf_unchanged(lightning, tmp_path):
    model, fpf = module_and_fpf(lightning)
    model.test_step = lambda *_: None
    fitting = trainer(lightning.FPFCallback(fpf), tmp_path, epochs=1)
    fitting.fit(model, loader(0))
    fitting.save_checkpoint(tmp_path / "one.ckpt")
    fitting = trainer(lightning.FPFCallback(fpf), tmp_path, epochs=1)
    fitting.fit(model, loader(1))
    fitting.test(model, loader(1), ckpt_path=tmp_path / "one.ckpt", weights_only=True, verbose=False)
    assert fpf.step == 12
    assert fpf.shifts == [6]
    fitting = trainer(fitting.callbacks[0], tmp_path, epochs=1)
    fitting.fit(model, loader(0))
    assert fpf.step == 18
    assert fpf.shifts == [6, 12]


@pytest.mark.filterwarnings("ignore:.*num_workers", "ignore:.*tensorboard")
@pytest.mark.parametrize("by", ["tuner", "callback", "batch size"])
def test_steps_that_lightning_undoes_are_not_observed(lightning, by, tmp_path):
    """Its Tuner takes steps and then returns to a checkpoint from before them."""
    from lightning.pytorch.callbacks import LearningRateFinder
    from lightning.pytorch.tuner import Tuner

    model, fpf = module_and_fpf(lightning)
    model.lr = 0.1
    for task in range(2):
        finder = [LearningRateFinder(num_training_steps=3, update_attr=False)] if by == "callback" else []
        fitting = trainer(lightning.FPFCallback(fpf), tmp_path, epochs=1)
        fitting.callbacks.extend(finder)
        if by == "tuner":
            Tuner(fitting).lr_find(model, loader(task), num_training=3, update_attr=False)
        if by == "batch size":
            model.batch_size = 5
            model.train_dataloader = lambda task=task: loader(task, model.batch_size)
            Tuner(fitting).scale_batch_size(model, max_trials=1, steps_per_trial=1, init_val=5)
        fitting.fit(model, loader(task))
    assert fpf.step == 12
    assert fpf.shifts == [6]


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("distill", [0.0, 0.5])
def test_skipped_batches_are_not_observed(lightning, tmp_path, distill):
    model, fpf = module_and_fpf(lightning, distill=distill)
    step = type(model).training_step
    type(model).training_step = lambda self, batch, number: step(self, batch, number) if number % 2 else None
    trainer(lightning.FPFCallback(fpf), tmp_path).fit(model, loader(0))
    assert fpf.step == 3
    assert fpf.buffer.seen == 15


def test_lightning_is_told_what_is_missing(lightning, tmp_path):
    model = module(lightning, logits=False)
    callback = lightning.FPFCallback(FPF(model.network, distill=0.5))
    with pytest.raises(ValueError, match="distill is 0.5, which needs logits: return .* from training_step"):
        trainer(callback, tmp_path).fit(model, loader(0))
    with pytest.raises(ValueError, match="fpf is around another network than the one being fitted"):
        trainer(lightning.FPFCallback(FPF(network())), tmp_path).fit(model, loader(0))
    with pytest.raises(ValueError, match="a batch of type Tensor is neither .* split="):
        lightning.split_batch(torch.zeros(3))
    inputs, labels = lightning.split_batch({"ids": torch.ones(2), "labels": torch.zeros(2)})
    assert list(inputs) == ["ids"]
    assert labels.tolist() == [0, 0]

"""FPF as a callback of Hugging Face's Trainer."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from two_tasks import PROGRAMS, SETTINGS, TASKS, by_hand, data, import_example, network

from forgetless import FPF
from helpers import all_equal, in_processes


class Rows(Dataset):
    """A dataset that records the order in which its examples are read."""

    def __init__(self, task):
        x, y = data()
        self.first, self.x, self.y, self.taken = 30 * task, x, y, []

    def __len__(self):
        return 30

    def __getitem__(self, row):
        self.taken.append(self.first + row)
        return {"inputs": self.x[self.first + row], "labels": self.y[self.first + row]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, inputs, labels=None):
        logits = self.network(inputs)
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


def hugging_trainer(model, dataset, callback, folder, **settings):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(folder), num_train_epochs=3, per_device_train_batch_size=5, learning_rate=0.1, optim="sgd",
        lr_scheduler_type="constant", max_grad_norm=0, use_cpu=True, report_to=[], logging_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False, **{"save_strategy": "no", **settings},
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=dataset, callbacks=[callback])


def model_and_fpf(**settings):
    model = Model()
    return model, FPF(model, **SETTINGS, **settings)


def interrupt(*_):
    raise KeyboardInterrupt


def test_k_fpf_gains_30_points_on_digits_with_hugging_face(huggingface, monkeypatch):
    digits = import_example("huggingface_digits", monkeypatch)
    assert digits.run("k-FPF")[0] >= digits.run("plain")[0] + 30


def test_an_input_without_one_row_per_example_is_not_stored(huggingface, tmp_path):
    class Six(Rows):
        def __len__(self):
            return 6  # the last batch has one example

    class Shifted(Model):
        def forward(self, inputs, shift=None, labels=None):
            return super().forward(inputs if shift is None else inputs + shift, labels)

    def collate(examples):
        columns = {name: torch.stack([torch.as_tensor(one[name]) for one in examples]) for name in examples[0]}
        return columns | {"shift": torch.zeros(1, *columns["inputs"].shape[1:])}

    model = Shifted()
    fpf = FPF(model, 20, window=5)
    trainer = hugging_trainer(model, Six(0), huggingface.FPFCallback(fpf), tmp_path, remove_unused_columns=False)
    trainer.data_collator = collate
    with pytest.warns(UserWarning, match="shift: not one row per example, so the buffer does not store it"):
        trainer.train()
    assert fpf.step == 3 * 2
    assert fpf.buffer.columns == ("x.inputs", "y")


def test_hugging_face_trains_like_a_plain_loop(huggingface, tmp_path):
    model, fpf = model_and_fpf()
    callback = huggingface.FPFCallback(fpf)
    orders = []
    for task in range(TASKS):
        dataset = Rows(task)
        hugging_trainer(model, dataset, callback, tmp_path).train()
        orders.append(list(torch.tensor(dataset.taken).split(5)))
    assert fpf.step == 2 * 3 * 6
    assert fpf.shifts == [18]
    assert not model._forward_hooks
    fpf.finish()
    torch.testing.assert_close(nn.utils.parameters_to_vector(model.parameters()), by_hand(orders), rtol=1e-4, atol=1e-5)


def test_hugging_face_resumes_from_its_checkpoint(huggingface, tmp_path):
    model, fpf = model_and_fpf(groups="all")
    steps = {"save_strategy": "steps", "save_steps": 9}
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(fpf), tmp_path / "a", **steps).train()
    assert (tmp_path / "a" / "checkpoint-9" / "forgetless.pt").exists()
    again, again_fpf = model_and_fpf(groups="all")
    second = hugging_trainer(again, Rows(0), huggingface.FPFCallback(again_fpf), tmp_path / "a", **steps)
    second.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-9"))
    assert again_fpf.step == fpf.step == 18
    assert torch.equal(again_fpf.buffer["x.inputs"], fpf.buffer["x.inputs"])
    assert all_equal(again.parameters(), model.parameters())


def test_hugging_face_resumes_in_two_processes(huggingface, tmp_path):
    in_processes(1, PROGRAMS / "huggingface_together.py", tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["same weights"]
        assert found["same buffer"]
        assert found["steps"] == [12, 12]  # 60 examples, 5 in each process at a time, 2 epochs
        assert found["finetunings"] == [3, 3]
        assert found["files"] == ["forgetless.pt", "forgetless1.pt"]


def test_hugging_face_cannot_recreate_the_callback(huggingface, tmp_path):
    steps = {"save_strategy": "steps", "save_steps": 9}
    model = Model()
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(FPF(model, **SETTINGS)), tmp_path, **steps).train()
    again = hugging_trainer(
        model, Rows(0), huggingface.FPFCallback(FPF(model, **SETTINGS)), tmp_path, **steps,
        restore_callback_states_from_checkpoint=True,
    )  # fmt: skip
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'fpf'"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))


def test_the_state_must_belong_to_the_resumed_checkpoint(huggingface, tmp_path):
    steps = {"save_strategy": "steps", "save_steps": 9}

    def resume(**settings):
        model, fpf = model_and_fpf(groups="all")
        callback = huggingface.FPFCallback(fpf, **settings)
        one = hugging_trainer(model, Rows(0), callback, tmp_path / "b", **steps)
        one.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-9"))
        return fpf

    model, fpf = model_and_fpf(groups="all")
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(fpf), tmp_path / "a", **steps).train()
    with pytest.raises(FileNotFoundError, match="forgetless.pt is missing; .* pass the checkpoint's folder"):
        resume()
    other, fpf = model_and_fpf(groups="all")
    hugging_trainer(other, Rows(1), huggingface.FPFCallback(fpf), tmp_path / "b", **steps).train()
    with pytest.raises(ValueError, match="forgetless.pt does not belong to the checkpoint that training resumes"):
        resume()  # the other task wrote a checkpoint of the same step there
    assert set(resume(checkpoint=tmp_path / "a" / "checkpoint-9").buffer["y"].tolist()) == {0, 1}


def test_an_interrupted_training_leaves_no_working_hook(huggingface, tmp_path):
    model, fpf = model_and_fpf()
    interrupted = hugging_trainer(model, Rows(0), huggingface.FPFCallback(fpf), tmp_path)
    interrupted.training_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    assert model._forward_hooks
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(fpf), tmp_path).train()
    assert not model._forward_hooks
    assert not model._forward_hooks_with_kwargs


def test_an_fpf_around_another_model_is_refused(huggingface, tmp_path):
    with pytest.raises(ValueError, match="fpf is around another model than the Trainer's"):
        hugging_trainer(Model(), Rows(0), huggingface.FPFCallback(FPF(Model())), tmp_path).train()


@pytest.mark.parametrize("labels", ["targets", "labels"])
def test_labels_that_the_model_does_not_get_are_reported(huggingface, tmp_path, labels):
    model = Model()
    training = hugging_trainer(model, Rows(0), huggingface.FPFCallback(FPF(model), labels=labels), tmp_path)
    if labels == "labels":
        training.compute_loss_func = lambda outputs, labels, **_: F.cross_entropy(outputs["logits"], labels)
    with pytest.raises(ValueError, match=f"the model was not called with '{labels}' in this step"):
        training.train()

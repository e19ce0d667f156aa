"""FPF as a callback of Hugging Face's Trainer."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from two_tasks import BUDGET, PROGRAMS, SETTINGS, TASKS, by_hand, data, import_example, network

from forgetless import FPF
from helpers import in_processes


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


def interrupt(*_):
    raise KeyboardInterrupt


def test_k_fpf_gains_30_points_with_hugging_face(huggingface, monkeypatch):
    digits = import_example("huggingface_digits", monkeypatch)
    assert digits.run("k-FPF")[0] >= digits.run("plain")[0] + 30


def test_an_input_without_rows_per_example_is_not_stored(huggingface, tmp_path):
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


# With the policy "distinct", which examples are held depends on the names of their columns.
@pytest.mark.parametrize("common", [SETTINGS, BUDGET | {"policy": "reservoir"}], ids=["schedule", "budget"])
def test_hugging_face_trains_like_a_plain_loop(huggingface, tmp_path, common):
    model = Model()
    fpf = FPF(model, **common)
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
    torch.testing.assert_close(
        nn.utils.parameters_to_vector(model.parameters()), by_hand(orders, common), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("common", [SETTINGS | {"groups": "all"}, BUDGET], ids=["schedule", "budget"])
def test_hugging_face_resumes_from_its_checkpoint(huggingface, tmp_path, common):
    def make():
        model = Model()
        return model, FPF(model, **common)

    model, fpf = make()
    steps = {"save_strategy": "steps", "save_steps": 9}
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(fpf), tmp_path / "a", **steps).train()
    assert (tmp_path / "a" / "checkpoint-9" / "forgetless.pt").exists()
    again, again_fpf = make()
    second = hugging_trainer(again, Rows(0), huggingface.FPFCallback(again_fpf), tmp_path / "a", **steps)
    second.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-9"))
    assert again_fpf.step == fpf.step == 18
    assert torch.equal(again_fpf.buffer["x.inputs"], fpf.buffer["x.inputs"])
    for one, other in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


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
    with pytest.raises(ValueError, match="fpf is None; .* with restore_callback_states_from_checkpoint"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))


def test_t5_needs_its_decoder_inputs_in_the_batch(huggingface, tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 1, "vocab_size": 20}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))

    def train(more):
        fpf = FPF(model, 20, every=4, steps=2, groups="all", loss=lambda z, y: F.cross_entropy(z.mT, y))
        ids = torch.arange(6)
        rows = [{"input_ids": ids + i % 5, "labels": ids} | more for i in range(30)]
        hugging_trainer(model, rows, huggingface.FPFCallback(fpf), tmp_path).train()
        return fpf

    with pytest.raises(ValueError, match="T5ForConditionalGeneration makes its decoder's inputs from the labels"):
        train({})
    assert train({"decoder_input_ids": torch.arange(6).roll(1)}).finetunings == 4


def test_the_state_must_belong_to_the_resumed_checkpoint(huggingface, tmp_path):
    steps = {"save_strategy": "steps", "save_steps": 9}

    def resume(**settings):
        model = Model()
        fpf = FPF(model, **SETTINGS, groups="all")
        callback = huggingface.FPFCallback(fpf, **settings)
        one = hugging_trainer(model, Rows(0), callback, tmp_path / "b", **steps)
        one.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-9"))
        return fpf

    model = Model()
    callback = huggingface.FPFCallback(FPF(model, **SETTINGS, groups="all"))
    hugging_trainer(model, Rows(0), callback, tmp_path / "a", **steps).train()
    advice = "forgetless.pt is missing; .* pass the checkpoint's folder.* without resume_from_checkpoint"
    with pytest.raises(FileNotFoundError, match=advice):
        resume()
    other = Model()
    callback = huggingface.FPFCallback(FPF(other, **SETTINGS, groups="all"))
    hugging_trainer(other, Rows(1), callback, tmp_path / "b", **steps).train()
    with pytest.raises(ValueError, match="forgetless.pt does not belong to the checkpoint that training resumes"):
        resume()  # the other task wrote a checkpoint of the same step there
    assert set(resume(checkpoint=tmp_path / "a" / "checkpoint-9").buffer["y"].tolist()) == {0, 1}


def test_an_interrupted_training_leaves_no_working_hook(huggingface, tmp_path):
    model = Model()
    fpf = FPF(model, **SETTINGS)
    first = huggingface.FPFCallback(fpf)
    dataset = Rows(0)
    with pytest.raises(KeyboardInterrupt):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fpf, "observe", interrupt)
            hugging_trainer(model, dataset, first, tmp_path).train()
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(fpf), tmp_path).train()
    assert not first._batches
    assert not model._forward_hooks
    assert not model._forward_hooks_with_kwargs


def test_a_hook_left_by_an_interrupt_fills_no_memory(huggingface, tmp_path):
    model = Model()
    callback = huggingface.FPFCallback(FPF(model, **SETTINGS))
    training = hugging_trainer(model, Rows(0), callback, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "training_step", interrupt)
            training.train()
    x, y = data()
    for _ in range(200):  # in one's own loop
        model(inputs=x[:5], labels=y[:5])
    assert len(callback._batches) == 64


def test_a_loss_may_call_the_model_many_times(huggingface, tmp_path):
    class Often(Model):
        def forward(self, inputs, labels=None):
            if labels is not None and not self.asked:
                self.asked = True
                for _ in range(100):
                    self(inputs=inputs, labels=labels)
                self.asked = False
            return super().forward(inputs, labels)

    model = Often()
    model.asked = False
    fpf = FPF(model, **SETTINGS)
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(fpf), tmp_path).train()
    assert fpf.step == 18


def test_a_trainer_that_fpf_cannot_follow_is_refused(huggingface, tmp_path):
    from transformers import TrainingArguments

    model = Model()
    with pytest.raises(ValueError, match="fpf is around another model than the Trainer's"):
        hugging_trainer(model, Rows(0), huggingface.FPFCallback(FPF(Model())), tmp_path).train()
    smoothed = TrainingArguments(str(tmp_path), use_cpu=True, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=r"label_smoothing_factor is 0\.1, with which the Trainer does not"):
        huggingface.check(FPF(model), smoothed, model)


def test_an_unknown_labels_argument_is_reported(huggingface, tmp_path):
    model = Model()
    callback = huggingface.FPFCallback(FPF(model), labels="targets")
    with pytest.raises(ValueError, match="the model was not called with 'targets' in this step"):
        hugging_trainer(model, Rows(0), callback, tmp_path).train()

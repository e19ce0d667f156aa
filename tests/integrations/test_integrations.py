"""FPF through other libraries' loops: the gain on digits, and the same weights as in a loop by hand."""

import importlib
import json
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from forgetless import FPF, networks
from forgetless.integrations.batches import joined
from helpers import in_processes

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = {"capacity": 40, "every": 7, "steps": 5, "window": 3, "lr": 0.1}
TASKS = 2


def integration(name, library):
    """A module of forgetless.integrations, or a skip where its library is missing; warnings at import are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(library, reason=f"{library} is not installed")
        yield importlib.import_module(f"forgetless.integrations.{name}")


@pytest.fixture
def lightning():
    yield from integration("lightning", "lightning.pytorch")


@pytest.fixture
def huggingface():
    yield from integration("huggingface", "transformers")


@pytest.fixture
def avalanche(monkeypatch):
    pytest.importorskip("pytorchcv", reason="Avalanche is not installed; `make test-avalanche` does it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "programs"))
        importlib.import_module("torchvision_operators")
        yield importlib.import_module("forgetless.integrations.avalanche")


def example(name, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 6, generator=generator)
    return x, torch.arange(60) % 2 + 2 * (torch.arange(60) // 30)  # 30 examples of classes 0 and 1, then of 2 and 3


def network():
    torch.manual_seed(3)
    return networks.mlp(4, inputs=6, hidden=(8,))


def by_hand(orders, **settings):
    """The weights after a loop by hand over batches of these rows, a list for each task."""
    model = network()
    fpf = FPF(model, **{**SETTINGS, **settings})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data()
    for number, order in enumerate(orders):
        if number:
            fpf.boundary()
        for rows in order:
            logits = model(x[rows])
            optimizer.zero_grad()
            F.cross_entropy(logits, y[rows]).backward()
            optimizer.step()
            fpf.observe(x[rows], y[rows], logits)
    assert fpf.finetunings
    fpf.finish()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def in_turn(epochs=1, size=5):
    return [list(torch.arange(30).add(30 * task).split(size)) * epochs for task in range(TASKS)]


# ---- Lightning


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


def loader(task, size=5):
    x, y = data()
    rows = slice(30 * task, 30 * task + 30)
    return DataLoader(TensorDataset(x[rows], y[rows]), batch_size=size)


def test_through_lightning_k_fpf_gains_30_points_and_more(lightning, monkeypatch):
    digits = example("lightning_digits", monkeypatch)
    assert digits.run("k-FPF")[0] >= digits.run("plain")[0] + 30


@pytest.mark.parametrize(("accumulate", "distill"), [(1, 0.0), (2, 0.5)])
def test_lightning_ends_with_the_weights_of_a_loop_by_hand(lightning, tmp_path, accumulate, distill):
    model = module(lightning)
    fpf = FPF(model.network, **SETTINGS, distill=distill)
    callback = lightning.FPFCallback(fpf)
    for task in range(TASKS):
        fitting = trainer(callback, tmp_path, epochs=3, accumulate_grad_batches=accumulate)
        fitting.fit(model, loader(task, 10 // accumulate))
    assert fpf.step == 2 * 3 * 3
    assert fpf.shifts == [9]
    fpf.finish()
    weights = nn.utils.parameters_to_vector(model.network.parameters())
    expected = by_hand(in_turn(3, size=10), distill=distill)
    torch.testing.assert_close(weights, expected, rtol=0, atol=0 if accumulate == 1 else 1e-5)


def test_lightning_goes_on_from_its_checkpoint(lightning, tmp_path):
    def make():
        model = module(lightning)
        return model, FPF(model.network, **SETTINGS, groups="all")

    model, fpf = make()
    trainer(lightning.FPFCallback(fpf), tmp_path, epochs=4).fit(model, loader(0))
    half, half_fpf = make()
    first = trainer(lightning.FPFCallback(half_fpf), tmp_path, epochs=2)
    first.fit(half, loader(0))
    first.save_checkpoint(tmp_path / "half.ckpt")
    again, again_fpf = make()
    second = trainer(lightning.FPFCallback(again_fpf), tmp_path, epochs=4)
    second.fit(again, loader(0), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert again_fpf.step == fpf.step == 24
    assert again_fpf.finetunings == fpf.finetunings == 3
    assert torch.equal(again_fpf.buffer["x"], fpf.buffer["x"])
    for one, other in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lightning_goes_on_from_its_checkpoint_in_two_processes(lightning, tmp_path):
    program = Path(__file__).parents[1] / "programs" / "lightning_together.py"
    in_processes(2, program, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for found in (first, second):
        assert found["same weights"]
        assert found["same buffer"]
        assert found["steps"] == [24, 24]  # 60 examples, 5 in each process at a time, 4 epochs
        assert found["finetunings"] == [5, 5]
        assert found["capacity"] == 20
    assert first["kept"] != second["kept"]


def test_a_checkpoint_of_a_training_that_had_ended_gives_its_state_too(lightning, tmp_path):
    """``fit`` then starts nothing; the next task goes on from there."""

    def make():
        model = module(lightning)
        return model, FPF(model.network, **SETTINGS)

    model, fpf = make()
    first = trainer(lightning.FPFCallback(fpf), tmp_path)
    first.fit(model, loader(0))
    first.save_checkpoint(tmp_path / "ended.ckpt")
    again, again_fpf = make()
    trainer(lightning.FPFCallback(again_fpf), tmp_path).fit(
        again, loader(0), ckpt_path=tmp_path / "ended.ckpt", weights_only=True
    )
    assert again_fpf.step == fpf.step == 6
    assert torch.equal(again_fpf.buffer["x"], fpf.buffer["x"])
    for one, its_fpf in ((model, fpf), (again, again_fpf)):
        trainer(lightning.FPFCallback(its_fpf), tmp_path).fit(one, loader(1))
    assert again_fpf.shifts == fpf.shifts == [6]
    for one, other in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_second_fit_of_one_trainer_is_a_new_task(lightning, tmp_path):
    model = module(lightning)
    fpf = FPF(model.network, **SETTINGS)
    fitting = trainer(lightning.FPFCallback(fpf), tmp_path, epochs=2)
    fitting.fit(model, loader(0))
    fitting.fit_loop.max_epochs = 4
    fitting.fit(model, loader(1))
    assert fpf.shifts == [12]


def test_testing_a_checkpoint_leaves_fpf_as_it_is(lightning, tmp_path):
    model = module(lightning)
    model.test_step = lambda *_: None
    fpf = FPF(model.network, **SETTINGS)
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
def test_steps_that_lightning_undoes_are_none_of_fpfs(lightning, by, tmp_path):
    """Its finder of learning rates takes steps, and goes back to a checkpoint of before them."""
    from lightning.pytorch.callbacks import LearningRateFinder
    from lightning.pytorch.tuner import Tuner

    model = module(lightning)
    model.lr = 0.1
    fpf = FPF(model.network, **SETTINGS)
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
def test_lightning_does_not_observe_batches_that_were_skipped(lightning, tmp_path, distill):
    model = module(lightning)
    step = type(model).training_step
    type(model).training_step = lambda self, batch, number: step(self, batch, number) if number % 2 else None
    fpf = FPF(model.network, **SETTINGS, distill=distill)
    trainer(lightning.FPFCallback(fpf), tmp_path).fit(model, loader(0))
    assert fpf.step == 3
    assert fpf.buffer.seen == 15


def test_lightning_is_told_what_is_missing(lightning, tmp_path):
    model = module(lightning, logits=False)
    callback = lightning.FPFCallback(FPF(model.network, distill=0.5))
    with pytest.raises(ValueError, match="distill is 0.5, which needs logits: return .* from training_step"):
        trainer(callback, tmp_path).fit(model, loader(0))
    with pytest.raises(ValueError, match="fpf is around another network than the one that is fitted"):
        trainer(lightning.FPFCallback(FPF(network())), tmp_path).fit(model, loader(0))
    with pytest.raises(ValueError, match="a batch of type Tensor is neither .* split="):
        lightning.pair(torch.zeros(3))
    inputs, labels = lightning.pair({"ids": torch.ones(2), "labels": torch.zeros(2)})
    assert list(inputs) == ["ids"]
    assert labels.tolist() == [0, 0]


# ---- Hugging Face


class Rows(Dataset):
    """Writes down in which order its examples are taken."""

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


def test_through_hugging_face_k_fpf_gains_30_points_and_more(huggingface, monkeypatch):
    digits = example("huggingface_digits", monkeypatch)
    assert digits.run("k-FPF")[0] >= digits.run("plain")[0] + 30


def test_through_hugging_face_an_input_without_a_row_for_each_example_is_left_out_and_told(huggingface, tmp_path):
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
    with pytest.warns(UserWarning, match="shift: not one row for each example, so the buffer does not hold it"):
        trainer.train()
    assert fpf.step == 3 * 2
    assert fpf.buffer.columns == ("x.inputs", "y")


def test_hugging_face_ends_with_the_weights_of_a_loop_by_hand(huggingface, tmp_path):
    model = Model()
    fpf = FPF(model, **SETTINGS)
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


def test_hugging_face_goes_on_from_its_checkpoint(huggingface, tmp_path):
    def make():
        model = Model()
        return model, FPF(model, **SETTINGS, groups="all")

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


def test_hugging_face_goes_on_from_its_checkpoint_in_two_processes(huggingface, tmp_path):
    in_processes(2, Path(__file__).parents[1] / "programs" / "huggingface_together.py", tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["same weights"]
        assert found["same buffer"]
        assert found["steps"] == [12, 12]  # 60 examples, 5 in each process at a time, 2 epochs
        assert found["finetunings"] == [3, 3]
        assert found["files"] == ["forgetless.pt", "forgetless1.pt"]


def test_hugging_face_cannot_make_the_callback_anew(huggingface, tmp_path):
    steps = {"save_strategy": "steps", "save_steps": 9}
    model = Model()
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(FPF(model, **SETTINGS)), tmp_path, **steps).train()
    again = hugging_trainer(
        model, Rows(0), huggingface.FPFCallback(FPF(model, **SETTINGS)), tmp_path, **steps,
        restore_callback_states_from_checkpoint=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="fpf is None; .* with restore_callback_states_from_checkpoint"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))


def test_a_model_that_makes_inputs_from_the_labels_needs_them_in_the_batch(huggingface, tmp_path):
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


def test_hugging_face_reads_the_state_of_the_checkpoint_it_goes_on_from(huggingface, tmp_path):
    steps = {"save_strategy": "steps", "save_steps": 9}

    def go_on(**settings):
        model = Model()
        fpf = FPF(model, **SETTINGS, groups="all")
        callback = huggingface.FPFCallback(fpf, **settings)
        one = hugging_trainer(model, Rows(0), callback, tmp_path / "b", **steps)
        one.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-9"))
        return fpf

    model = Model()
    callback = huggingface.FPFCallback(FPF(model, **SETTINGS, groups="all"))
    hugging_trainer(model, Rows(0), callback, tmp_path / "a", **steps).train()
    with pytest.raises(FileNotFoundError, match="forgetless.pt is missing: .* name the checkpoint's folder"):
        go_on()
    other = Model()
    callback = huggingface.FPFCallback(FPF(other, **SETTINGS, groups="all"))
    hugging_trainer(other, Rows(1), callback, tmp_path / "b", **steps).train()
    with pytest.raises(ValueError, match="forgetless.pt is not of the checkpoint that training goes on from"):
        go_on()  # the other task wrote a checkpoint of the same step there
    assert set(go_on(checkpoint=tmp_path / "a" / "checkpoint-9").buffer["y"].tolist()) == {0, 1}


def test_an_interrupted_training_leaves_no_hook_that_works(huggingface, tmp_path):
    model = Model()
    fpf = FPF(model, **SETTINGS)
    first = huggingface.FPFCallback(fpf)
    dataset = Rows(0)
    with pytest.raises(KeyboardInterrupt):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fpf, "observe", interrupt)
            hugging_trainer(model, dataset, first, tmp_path).train()
    hugging_trainer(model, Rows(0), huggingface.FPFCallback(fpf), tmp_path).train()
    assert not first._seen
    assert not model._forward_hooks
    assert not model._forward_hooks_with_kwargs


def test_a_model_that_goes_on_alone_after_an_interrupt_fills_no_memory(huggingface, tmp_path):
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
    assert len(callback._seen) == 64


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


def interrupt(*_):
    raise KeyboardInterrupt


def test_what_hugging_face_cannot_do_is_refused(huggingface, tmp_path):
    from transformers import TrainingArguments

    model = Model()
    with pytest.raises(ValueError, match="fpf is around another model than the Trainer's"):
        hugging_trainer(model, Rows(0), huggingface.FPFCallback(FPF(Model())), tmp_path).train()
    smoothed = TrainingArguments(str(tmp_path), use_cpu=True, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=r"label_smoothing_factor is 0\.1, with which the Trainer keeps the labels"):
        huggingface.check(FPF(model), smoothed, model)


def test_hugging_face_is_told_where_the_labels_are(huggingface, tmp_path):
    model = Model()
    callback = huggingface.FPFCallback(FPF(model), labels="targets")
    with pytest.raises(ValueError, match="the model was not called with 'targets' in this step"):
        hugging_trainer(model, Rows(0), callback, tmp_path).train()


# ---- Avalanche


def test_through_avalanche_k_fpf_gains_30_points_and_more(avalanche, monkeypatch):
    warnings.simplefilter("ignore")
    digits = example("avalanche_digits", monkeypatch)
    assert digits.run("k-FPF")[0] >= digits.run("plain")[0] + 30


def test_around_replay_only_new_examples_are_remembered(avalanche, monkeypatch):
    """Of each class there are about 144 training images; three epochs offer each three times."""
    warnings.simplefilter("ignore")
    digits = example("avalanche_digits", monkeypatch)
    accuracy, fpf = digits.run("FPF", replay=True)
    assert fpf.buffer.seen == 3 * 1437
    assert len(fpf.shifts) == 4
    assert accuracy > 80


def test_an_online_stream_has_the_tasks_of_its_experiences(avalanche):
    warnings.simplefilter("ignore")
    from avalanche.benchmarks import nc_benchmark, split_online_stream
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import IncrementalClassifier
    from avalanche.training.supervised import Naive

    def strategy(model):
        fpf = FPF(model, **SETTINGS)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return fpf, Naive(
            model=model, optimizer=optimizer, train_mb_size=5, plugins=[avalanche.FPFPlugin(fpf)], evaluator=None
        )

    dataset = TensorDataset(*data())
    dataset.targets = data()[1].tolist()
    whole = as_classification_dataset(dataset)
    benchmark = nc_benchmark(whole, whole, n_experiences=2, task_labels=False, fixed_class_order=[0, 1, 2, 3])
    fpf, online = strategy(network())
    for experience in split_online_stream(benchmark.train_stream, experience_size=10):
        online.train(experience)
    assert fpf.step == 12
    assert fpf.shifts == [6]
    _, growing = strategy(nn.Sequential(nn.Linear(6, 8), IncrementalClassifier(8)))
    with pytest.raises(ValueError, match="the model has layers that grow or that depend on task labels"):
        growing.train(benchmark.train_stream[0])


# ---- DistributedDataParallel; more in test_processes.py


def test_through_torchrun_k_fpf_gains_30_points_and_more():
    printed = in_processes(2, EXAMPLES / "distributed_digits.py")
    found = {way: float(value) for way, value in re.findall(r"^(\S+) +([\d.]+) %$", printed, re.M)}
    assert found["k-FPF"] >= found["plain"] + 30
    assert "chosen" in printed


def test_batches_are_joined():
    one, two = torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]])
    x, y, logits = joined([({"a": one}, one[:, 0], one), ({"a": two}, two[:, 0], two)])
    assert x["a"].tolist() == logits.tolist() == [[1.0], [2.0], [3.0]]
    assert y.tolist() == [1.0, 2.0, 3.0]
    assert joined([(one, one, None), (two, two, None)])[2] is None


def test_batches_of_several_lengths_cannot_be_one():
    seen = [({"ids": torch.zeros(2, length)}, torch.zeros(2), None) for length in (5, 7)]
    with pytest.raises(ValueError, match=r"x\.ids: batches .* of the shapes \(5,\) and \(7,\); .* pad to one length"):
        joined(seen)

"""FPF in Hugging Face's Trainer and TRL's SFTTrainer with a causal language model, in full and with LoRA."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("peft", reason="peft is not installed")

from forgetless import FPF
from language import adapted, collate, llama, sentence

SENTENCES = [sentence(0, start, 4 + start % 7) for start in range(48)]
SETTINGS = {
    "max_steps": 6, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 0.1,
    "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0, "use_cpu": True, "bf16": False,
    "report_to": [], "logging_strategy": "no", "disable_tqdm": True, "save_steps": 3, "save_strategy": "steps",
    "dataloader_pin_memory": False,
}  # fmt: skip
REPAIRS = {"capacity": 24, "every": 2, "steps": 2, "groups": "all", "policy": "distinct", "seed": 1}
ADAPTERS = pytest.mark.parametrize("adapters", [False, True], ids=["full", "lora"])
# Both trainers set an argument that transformers 5 has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")


class Recorder(torch.nn.Module):
    """A collator that records its batches."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def forward(self, examples):
        self.batches.append(collate([example["input_ids"] for example in examples]))
        return self.batches[-1]


def hugging_trainer(model, folder, adapters, **settings):
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": tokens} for tokens in SENTENCES]
    arguments = TrainingArguments(str(folder), remove_unused_columns=False, **SETTINGS | settings)
    return Trainer(adapted(model) if adapters else model, arguments, train_dataset=rows, data_collator=Recorder())


def sft_trainer(model, folder, adapters, **settings):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    from datasets import Dataset
    from peft import LoraConfig

    from folders import tokenizer

    words = tokenizer(eos_token="[SEP]", pad_token="[PAD]")
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if adapters else None
    rows = Dataset.from_list([{"input_ids": tokens} for tokens in SENTENCES])
    arguments = trl.SFTConfig(str(folder), **SETTINGS | settings)
    return trl.SFTTrainer(model, arguments, train_dataset=rows, processing_class=words, peft_config=lora)


TRAINERS = pytest.mark.parametrize("make", [hugging_trainer, sft_trainer], ids=["Trainer", "SFTTrainer"])


def observed(huggingface, trainer, **settings):
    fpf = FPF(trainer.model, **REPAIRS | settings)
    trainer.add_callback(huggingface.FPFCallback(fpf))
    return fpf


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


@TRAINERS
@ADAPTERS
def test_a_language_model_resumes_from_its_checkpoint(huggingface, make, adapters, tmp_path):
    trainer = make(llama(), tmp_path, adapters, gradient_checkpointing=True)
    fpf = observed(huggingface, trainer)
    trainer.train()
    assert fpf.step == 6
    assert fpf.finetunings == 3
    assert trainer.model.is_gradient_checkpointing
    held = {tuple(row[: mask.sum()].tolist()) for row, mask in zip(*list(rows_of(fpf))[:2], strict=True)}
    assert held <= {tuple(tokens) for tokens in SENTENCES}
    assert len(held) == 24

    again = make(llama(), tmp_path, adapters, gradient_checkpointing=True)
    resumed = observed(huggingface, again)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert (resumed.step, resumed.finetunings) == (6, 3)
    assert [column.tolist() for column in rows_of(resumed)] == [column.tolist() for column in rows_of(fpf)]
    expected = weights(trainer.model)
    for name, weight in weights(again.model).items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=0)


def rows_of(fpf):
    return (fpf.buffer[name] for name in ("x.input_ids", "x.attention_mask", "y"))


@ADAPTERS
def test_the_trainer_trains_like_a_plain_loop(huggingface, adapters, tmp_path):
    trainer = hugging_trainer(llama(), tmp_path, adapters, gradient_accumulation_steps=1)
    fpf = observed(huggingface, trainer)
    torch.manual_seed(0)
    trainer.train()
    model = adapted(llama()) if adapters else llama()
    with torch.no_grad():  # peft draws the weights of adapters
        start = hugging_trainer(llama(), tmp_path, adapters).model
        for own, other in zip(model.parameters(), start.parameters(), strict=True):
            own.copy_(other)
    by_hand = FPF(model, **REPAIRS)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.train()
    for batch in trainer.data_collator.batches[:6]:  # the loader is ahead
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        by_hand.observe(batch)
    assert by_hand.buffer["x.input_ids"].tolist() == fpf.buffer["x.input_ids"].tolist()
    expected = weights(model)
    for name, weight in weights(trainer.model).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-6)


def test_packed_sequences_are_stored_one_by_one(huggingface, tmp_path):
    trainer = sft_trainer(llama(), tmp_path, False, packing=True, max_length=32, save_strategy="no")
    fpf = observed(huggingface, trainer)
    trainer.train()
    assert fpf.buffer.columns == ("x.input_ids", "x.position_ids", "y")
    known = {tuple(tokens) for tokens in SENTENCES}
    assert len(fpf.buffer) == 24
    for ids, labels in zip(fpf.buffer["x.input_ids"].tolist(), fpf.buffer["y"].tolist(), strict=True):
        length = len(ids) - ids.count(0)  # the padding token of the tokenizer
        assert tuple(ids[:length]) in known
        assert labels[:length] == [-100, *ids[1:length]]


def test_logits_of_tokens_are_not_held(huggingface, tmp_path):
    trainer = hugging_trainer(llama(), tmp_path, False, save_strategy="no")
    fpf = FPF(trainer.model, **REPAIRS)
    callback = huggingface.FPFCallback(fpf)
    batch = collate(SENTENCES[:4])
    callback._collect(trainer.model.train(), (), batch, trainer.model(**batch))
    assert callback._batches[0][2] is None

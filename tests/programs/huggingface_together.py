"""Started by test_huggingface.py: a Trainer in two processes that writes checkpoints, and one that resumes from one.

    python huggingface_together.py FOLDER

Each process writes whether it ends with the weights, the steps and the buffer of an uninterrupted training.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

warnings.simplefilter("ignore")

from forked import run_forked  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

from forgetless import FPF, networks  # noqa: E402
from forgetless.integrations.huggingface import FPFCallback  # noqa: E402


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.network = networks.mlp(4, inputs=6, hidden=(8,))

    def forward(self, inputs, labels=None):
        logits = self.network(inputs)
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


def trained(folder, checkpoint=None):
    model = Model()
    fpf = FPF(model, capacity=40, every=5, steps=4, groups="all")
    arguments = TrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=5, learning_rate=0.1, optim="sgd", use_cpu=True,
        report_to=[], logging_strategy="no", disable_tqdm=True, save_strategy="steps", save_steps=7,
        dataloader_pin_memory=False,
    )  # fmt: skip
    x = torch.rand(60, 6, generator=torch.Generator().manual_seed(0))
    rows = [{"inputs": x[i], "labels": i % 4} for i in range(60)]
    Trainer(model, arguments, train_dataset=rows, callbacks=[FPFCallback(fpf)]).train(resume_from_checkpoint=checkpoint)
    return model, fpf


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    model, fpf = trained(folder)
    again, again_fpf = trained(folder, str(folder / "checkpoint-7"))
    fpf.finish()
    again_fpf.finish()
    found = {
        "same weights": all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)),
        "same buffer": torch.equal(fpf.buffer["x.inputs"], again_fpf.buffer["x.inputs"]),
        "steps": [fpf.step, again_fpf.step],
        "finetunings": [fpf.finetunings, again_fpf.finetunings],
        "files": sorted(file.name for file in (folder / "checkpoint-7").glob("forgetless*")),
    }
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


run_forked(2, main, Path(sys.argv[1]))

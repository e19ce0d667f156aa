"""Started by test_lightning.py: Lightning's strategy ddp, interrupted half-way and resumed.

    python lightning_together.py FOLDER

Each process writes whether it ends with the weights, the steps and the buffer of an uninterrupted training.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

from forked import run_forked  # noqa: E402
from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from forgetless import FPF, networks  # noqa: E402
from forgetless.integrations.lightning import FPFCallback  # noqa: E402


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.network = networks.mlp(4, inputs=6, hidden=(8,))

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, number):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader():
    x = torch.rand(60, 6, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, torch.arange(60) % 4), batch_size=5)


def trainer(fpf, folder, epochs):
    return Trainer(
        max_epochs=epochs, accelerator="cpu", devices=2, strategy="ddp", callbacks=[FPFCallback(fpf)], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip


def make():
    module = Module()
    return module, FPF(module.network, capacity=40, every=5, steps=4, groups="all")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    whole, fpf = make()
    trainer(fpf, folder, 4).fit(whole, loader())
    half, half_fpf = make()
    first = trainer(half_fpf, folder, 2)
    first.fit(half, loader())
    first.save_checkpoint(folder / "half.ckpt")
    again, again_fpf = make()
    trainer(again_fpf, folder, 4).fit(again, loader(), ckpt_path=folder / "half.ckpt", weights_only=True)
    fpf.finish()
    again_fpf.finish()
    same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    found = {
        "same weights": same,
        "steps": [fpf.step, again_fpf.step],
        "finetunings": [fpf.finetunings, again_fpf.finetunings],
        "capacity": again_fpf.buffer.capacity,
        "same buffer": torch.equal(fpf.buffer["x"], again_fpf.buffer["x"]),
        "kept": again_fpf.buffer["x"].sum().item(),
    }
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


run_forked(2, main, Path(sys.argv[1]))

"""The settings of one training run. Imports no torch."""

from dataclasses import dataclass

from forgetless.config.catalogue import POLICIES, PRECISIONS
from forgetless.config.fields import SEED, Checked, setting
from forgetless.memory.settings import Memory
from forgetless.repair.settings import Finetune

DECAYS = (0.7, 0.9)  # shares of a task's epochs after which the learning rate falls, as for X-DER in Mammoth


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Checked):
    """How a method trains a network on a stream."""

    epochs: int = setting(1, "Epochs per task.", least=1, recorded="always")
    batch: int = setting(32, "Examples per training batch.", least=1, recorded="always")
    replay: int = setting(
        None, "Examples drawn from the buffer at a time; default: the batch size.", least=1, recorded="always"
    )
    lr: float = setting(0.1, "Learning rate.", above=0, recorded="always")
    lr_decay: float = setting(
        1.0, "Factor of the learning rate after 70 % of each task's epochs, and again after 90 %; 1: constant. It has "
        "no effect with fewer than 4 epochs.", above=0, most=1
    )  # fmt: skip
    weight_decay: float = setting(0.0, "Weight decay.", least=0, recorded="always")
    buffer: int = setting(Memory.capacity, "Examples the buffer holds.", least=0, recorded="always")
    policy: str = setting(
        Memory.policy,
        "How the buffer samples: reservoir (uniform), balanced (equal per class) or distinct (no repeats).",
        choices=POLICIES,
    )
    finetune: Finetune | None = setting(
        None, "FPF or k-FPF: see Finetune.", expects="Finetune(…), Finetune.k_fpf(…) or None", recorded="never"
    )
    freeze: tuple[str, ...] = setting((), "Groups that no longer move after the first task.", recorded="always")
    anytime: bool = setting(False, "After each task, test what stopping the stream there would give.")
    seed: int = setting(
        0, "Seed of the initial weights, the order, augmentation and the buffer.", recorded="always", **SEED
    )
    device: str = setting(
        "cpu", "Device to train on.", pattern=r"cpu|cuda(:\d+)?", expects="cpu, cuda, cuda:1, …", recorded="always"
    )
    precision: str = setting("fp32", "Precision; default: bf16 on a GPU, else fp32.", choices=PRECISIONS)
    capture: bool | None = setting(
        None, "On a GPU, replay steps as CUDA graphs; default: for the methods and networks of forgetless.",
        recorded="never",
    )  # fmt: skip
    deterministic: bool = setting(False, "On a GPU, use only deterministic cuDNN kernels.", recorded="never")
    resident: bool | None = setting(
        None, "Keep all images on the device; default: if they take less than half of its free memory.",
        recorded="never",
    )  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "replay", self.batch if self.replay is None else self.replay)
        object.__setattr__(self, "device", str(self.device))  # a torch.device, too
        super().__post_init__()

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch of a task (from 0)."""
        decays = sum(epoch / self.epochs >= share for share in DECAYS)
        return self.lr * self.lr_decay**decays

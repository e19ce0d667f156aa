"""How runs are executed: where, in how many processes, and with which checkpoints. Imports no torch."""

from dataclasses import dataclass
from typing import final

from forgetless.config.fields import Checked, setting
from forgetless.experiments.storage import Schedule


@final
@dataclass(frozen=True, kw_only=True)
class Execution(Checked):
    """How a sweep executes its runs. Nothing here changes a result."""

    on: str = setting(
        "here", "Where to run: here (this machine) or ray (the Ray cluster in RAY_ADDRESS).", choices=("here", "ray")
    )
    workers: int | None = setting(None, "Processes for runs on the CPU; default: one per core.", least=1)
    lanes: int | None = setting(None, "Runs that train side by side on a GPU; default: 8.", least=1)
    retry: bool = setting(False, "Also repeat the runs that failed before.")
    checkpoint_seconds: float = setting(60.0, "Seconds between checkpoints; default 60, 0: none by time.", least=0)
    checkpoint_steps: int = setting(0, "Training steps between checkpoints; default 0: none by steps.", least=0)

    @property
    def schedule(self) -> Schedule:
        """Return when the runs write checkpoints."""
        return Schedule(self.checkpoint_steps or None, self.checkpoint_seconds or None)

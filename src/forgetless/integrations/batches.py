"""Join the batches of one optimiser step."""

from collections.abc import Sequence

from torch import Tensor

from forgetless.memory.batch import Inputs, Targets, pack, unpack
from forgetless.memory.ragged import concatenated, ragged

Observation = tuple[Inputs, Targets, Tensor | None]  # a batch as ``FPF.observe`` takes it: x, y, logits


def joined(batches: Sequence[Observation]) -> Observation:
    """Return several batches as one; those of shorter sequences are padded."""
    if len(batches) == 1:
        return batches[0]
    columns = [pack(x, y, logits, distill=float(logits is not None)) for x, y, logits in batches]
    lengths_vary = ragged(columns[0])
    for name in columns[0]:
        shapes = sorted({tuple(part[name].shape[1:]) for part in columns})
        if len(shapes) > 1 and name not in lengths_vary:
            raise ValueError(
                f"{name}: accumulated batches hold examples of the shapes {shapes[0]} and {shapes[1]}; the buffer "
                "needs one shape. Sequences of tokens may differ in length if there is an attention_mask, or a label "
                "for each token; to distil, pad them to one length"
            )
    rows = concatenated(columns)
    return unpack(rows), unpack(rows, "y"), rows.get("logits")

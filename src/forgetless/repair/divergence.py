"""How far the predictions of a language model are from earlier ones, which a buffer holds as columns.

``recalled.ids`` and ``recalled.logs`` have, for each position of a sequence, the tokens that were most likely to follow
and the logarithms of their probabilities. ``recalled.weight`` is the weight of the sequence.
"""

from collections.abc import Mapping

from torch import Tensor

from forgetless.memory.labels import NO_LABEL

RECALLED = "recalled"
SMALL = 1e-6  # the least probability of all unlikely tokens together


def recalls(rows: Mapping[str, Tensor]) -> bool:
    """Return whether these rows have earlier predictions."""
    return f"{RECALLED}.ids" in rows


def divergence(logits: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
    """Return the weighted mean over labels of the Kullback-Leibler divergence from the earlier predictions.

    All tokens besides the most likely ones count as one.
    """
    width = rows["y"].shape[1] - 1  # a draw is as long as its longest sequence
    ids, logs = (rows[f"{RECALLED}.{name}"][:, :width] for name in ("ids", "logs"))
    scores, logs, weights = logits[:, :-1].float(), logs.float(), label_weights(rows)
    now = scores.gather(2, ids.long()) - scores.logsumexp(2, keepdim=True)
    rest, rest_now = (1 - values.exp().sum(2) for values in (logs, now))
    rest, rest_now = rest.clamp(min=SMALL), rest_now.clamp(min=SMALL)
    total = (logs.exp() * (logs - now)).sum(2) + rest * (rest.log() - rest_now.log())
    return (weights * total).sum() / weights.sum()


def label_weights(rows: Mapping[str, Tensor]) -> Tensor:
    """Return the weight of each label after the first: that of its sequence, or 0 where there is no label."""
    return (rows["y"][:, 1:] != NO_LABEL) * rows[f"{RECALLED}.weight"][:, None]

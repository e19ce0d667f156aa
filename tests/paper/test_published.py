import pytest

from forgetless import METHODS, NETWORKS, STREAMS
from forgetless.paper.published import find, targets


def test_the_tables_are_complete():
    counts = {}
    for target in targets():
        counts[target.table] = counts.get(target.table, 0) + 1
    # table1: 33 rows on four streams, 29 on Seq-PACS, where iCaRL cannot run
    assert counts == {
        "table1": 4 * 33 + 29,
        "mlp-vgg": 2 * 17,
        "fpf-all": 2 * (12 + 14),
        "anytime": 4 * (6 + 7),
        "many-epochs": 4 * 4,
        "freeze": 6 * 5,
        "der-authors": 3,
        "cls-er-authors": 2,
    }


def test_numbers_match_the_publications():
    best = max(t.mean for label, t in find("table1", "seq-cifar10", buffer=500).items() if label != "joint")
    assert best == 69.08
    assert find("mlp-vgg", "seq-mnist", buffer=500)["k-fpf-ce"].mean == 90.63
    assert find("der-authors", "rot-mnist", buffer=500)["derpp"].mean == 92.77
    found = [find("cls-er-authors", "seq-mnist", buffer=buffer)["cls_er"] for buffer in (200, 500)]
    assert [(target.mean, target.std) for target in found] == [(89.54, 0.21), (92.05, 0.32)]


@pytest.mark.parametrize(
    "target", targets(), ids=lambda t: f"{t.table}-{t.stream}-{t.buffer}-{t.label}-{t.metric}-{t.freeze}"
)
def test_every_target_can_be_run(target):
    assert target.stream in STREAMS
    assert target.network in NETWORKS
    method = target.label.rpartition("+")[2]
    assert method in METHODS or method in ("k-fpf-ce", "k-fpf-kd", "k-fpf-all-ce")
    assert target.freeze in ("", "conv1", "block1", "block2", "block3", "block4")
    assert target.mean > 0

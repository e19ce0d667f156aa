import dataclasses

import pytest

from forgetless.reports.rows import Row
from forgetless.reports.verdict import cards, verdict


def paragraphs(rows):
    return [" ".join(sentences) for sentences in verdict(rows)]


@pytest.fixture
def row(records):
    """Return a row whose accuracies, FLOPs and share are given."""

    def make(label, accuracies, flops, share=0.0, before=None, **settings):
        method = label.split("+")[-1] if "+" in label or "fpf" not in label else "sgd"
        repair = "k-fpf" if label.startswith("k-fpf") else "fpf" if label.startswith("fpf") else "none"
        common = {**records[0].settings, "method": method, "repair": repair, "buffer": 200, **settings}
        return Row(
            label,
            tuple(
                dataclasses.replace(
                    records[0], id=f"{label}-{seed}", label=label, accuracy=accuracy, share=share,
                    settings={**common, "seed": seed},
                    finetunings=[{}] * (2 if repair == "k-fpf" else 1),
                    flops={"train": flops} if before is None else {"train": flops - 100, "finetune": 100},
                    before_finetuning=None if before is None else [before[seed]],
                )
                for seed, accuracy in enumerate(accuracies)
            ),
        )  # fmt: skip

    return make


def test_the_verdict_compares_repair_with_sgd_and_replay(row):
    rows = [
        row("sgd", [18.0, 20.0], 1000),
        row("fpf+sgd", [82.0, 84.0], 1100, share=0.06),
        row("er", [79.0, 81.0], 2000),
        row("gdumb", [67.3, 68.3], 500),
        row("joint", [94.0, 96.0], 1000),
    ]
    assert paragraphs(rows) == [
        "Plain SGD ends at 19.0 %. Repairing 6 % of the parameters afterwards (fpf+sgd) reaches 83.0 %, 64.0 points "
        "above plain SGD, at 1.10 times the compute. Replay at every step (ER) reaches 80.0 %, 3.0 points below "
        "fpf+sgd, at 2.00 times the compute. Training on the buffer alone (GDumb) reaches 67.8 %. Training on all "
        "tasks at once (joint) reaches 95.0 %, 12.0 points above fpf+sgd."
    ]
    assert cards(rows) == [
        ("Best accuracy with repair", "83.0 ± 1.4 %", "fpf+sgd"),
        ("Gain by repair", "+64.0 points", "fpf+sgd compared with plain SGD alone"),
        ("Parameters repaired", "6 %", "fpf+sgd"),
        ("Compute compared with replay", "0.55 ×", "fpf+sgd compared with ER"),
    ]


def test_a_repair_that_does_not_help_is_said_not_to(row):
    worse = [row("sgd", [30.0, 30.0], 1000), row("fpf+sgd", [20.0, 20.0], 1500, share=0.001)]
    assert "(fpf+sgd) reaches 20.0 %, 10.0 points below plain SGD, at 1.50 times the compute." in paragraphs(worse)[0]
    assert cards(worse)[1][1] == "−10.0 points"
    noisy = [row("sgd", [10.0, 30.0], 1000), row("fpf+sgd", [15.0, 35.0], 1500, share=0.001)]
    assert (
        "Repairing 0.1 % of the parameters afterwards (fpf+sgd) reaches 25.0 %, within noise of plain SGD"
        in paragraphs(noisy)[0]
    )
    assert cards(noisy)[1][2] == "fpf+sgd compared with plain SGD alone, within noise"


def test_a_repair_is_compared_run_by_run_with_what_it_repaired(row):
    rows = [row("fpf+er", [52.0, 72.0], 1100, share=0.25, before=[50.0, 70.0])]  # 2 points more in every run
    assert paragraphs(rows) == [
        "Repairing 25 % of the parameters afterwards (fpf+er) reaches 62.0 %, 2.0 points above ER, at 1.10 times the "
        "compute of ER. Replay at every step (ER) reaches 60.0 %."
    ]


def test_a_repair_that_was_undone_is_no_change(row):
    rows = [row("fpf+er", [50.0, 70.0004], 1100, share=0.0, before=[50.0, 70.0])]
    assert paragraphs(rows) == [
        "fpf+er, whose repairs changed nothing, reaches 60.0 %, within noise of ER, at 1.10 times the compute of ER. "
        "Replay at every step (ER) reaches 60.0 %."
    ]


def test_the_default_order_is_named(row):
    rows = [row("er", [20.0, 20.0], 1000), row("fpf+er", [80.0, 80.0], 2000, share=0.1, order=[1, 0])]
    assert [text.split(":")[0] for text in paragraphs(rows)] == ["Default order", "Order [1, 0]"]


NO_ROW = "No row is repaired; the best of 1 is"
ALL = "Repairing 100 % of the parameters"


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (["sgd"], f"Plain SGD ends at 50.0 %. {NO_ROW} sgd with 50.0 %."),
        (["joint"], f"{NO_ROW} joint with 50.0 %. Training on all tasks at once (joint) reaches 50.0 %."),
        (["oewc"], f"{NO_ROW} oewc with 50.0 %."),
        (["fpf+sgd"], f"{ALL} afterwards (fpf+sgd) reaches 50.0 %."),
        (["k-fpf-ce"], f"{ALL} at intervals (k-fpf-ce) reaches 50.0 %."),
        (
            ["er", "k-fpf-ce"],
            f"{ALL} at intervals (k-fpf-ce) reaches 50.0 %, at 1.00 times the compute of ER. "
            "Replay at every step (ER) reaches 50.0 %, within noise of k-fpf-ce.",
        ),
        (
            ["er", "derpp", "fpf+er"],
            f"{ALL} afterwards (fpf+er) reaches 50.0 %, within noise of ER, at 1.00 times the compute of ER. Replay at "
            "every step (ER) reaches 50.0 %. Replay at every step (DER++) reaches 50.0 %, at 1.00 times the compute of "
            "ER.",
        ),
    ],
)
def test_missing_rows_are_left_out(row, labels, text):
    rows = [row(label, [50.0, 50.0], 1000, share=1.0 if "fpf" in label else 0.0) for label in labels]
    assert paragraphs(rows) == [text]
    assert bool(cards(rows)) == any("fpf" in label for label in labels)


def test_single_runs_are_marked_as_such(row):
    rows = [row("sgd", [20.0], 1000), row("fpf+sgd", [20.5], 1000, share=0.5)]
    assert paragraphs(rows)[0].endswith("Rows without ± are single runs, whose noise is unknown.")
    assert "reaches 20.5 %, 0.5 points above plain SGD" in paragraphs(rows)[0]


def test_only_rows_of_the_same_setup_are_compared(row):
    rows = [row("sgd", [20.0, 20.0], 1000)]
    rows += [row(f"er, buffer {b}", [a, a], 2000, method="er", buffer=b) for a, b in ((60.0, 200), (70.0, 500))]
    rows += [row("fpf+er", [80.0, 80.0], 2000, share=0.1, buffer=500, epochs=50)]
    epochs = rows[0].settings["epochs"]
    assert [text.split("0 %,")[0] for text in paragraphs(rows)] == [
        f"Epochs {epochs}, buffer 200: Plain SGD ends at 20.0 %. Replay at every step (ER) reaches 60.",
        f"Epochs {epochs}, buffer 500: Plain SGD ends at 20.0 %. Replay at every step (ER) reaches 70.",
        "Epochs 50, buffer 500: Repairing 10 % of the parameters afterwards (fpf+er) reaches 80.0 %.",
    ]


def test_rows_on_validation_do_not_count_next_to_others(row):
    tested, held_out = (
        row("er", [60.0, 60.0], 1000),
        row("er, on validation", [70.0, 70.0], 1000, method="er", validation=True),
    )
    assert "(ER) reaches 60.0 %." in paragraphs([tested, held_out])[0]
    assert "(ER) reaches 70.0 %." in paragraphs([held_out])[0]

"""``forgetless reproduce`` and ``forgetless demo``."""

import json
import re

from calls import forgetless, leave

from forgetless.cli import demo
from forgetless.experiments import record
from forgetless.experiments.jobs import RunDone
from forgetless.experiments.pack import run_lanes


def test_reproductions_with_other_seeds_have_other_files(records, tmp_path):
    for seed in (0, 1):
        leave(records[seed], tmp_path / "runs", seed)
    for seeds in (1, 2):
        forgetless("reproduce", "table1", "--quick", "--rows", "sgd", "--seeds", seeds, cwd=tmp_path)
    for seeds in (1, 2):
        (row,) = json.loads((tmp_path / "runs" / f"reproduce-table1-sgd-seeds-{seeds}-quick.json").read_text())["lines"]
        assert row["seeds"] == seeds


def test_a_figure_of_the_paper_is_reproduced(tmp_path):
    call = ["reproduce", "freeze", "--quick", "--seeds", 1, "--rows", "er", "--workers", 1]
    done = forgetless(*call, cwd=tmp_path)
    assert "quick: seq-digits, 1 seed" in done.stdout
    assert "er, fc1 frozen" in done.stdout
    assert "hold: freezing fc1 costs the most (none frozen " in done.stdout.replace("holds", "hold")
    assert (tmp_path / "figures" / "freeze-er-seeds-1-seq-digits.png").stat().st_size > 1000
    values = json.loads((tmp_path / "runs" / "reproduce-freeze-er-seeds-1-quick.json").read_text())
    assert [line["name"] for line in values["lines"]] == ["er", *(f"er, {g} frozen" for g in ("fc1", "fc2", "fc3"))]
    assert all(len(line["records"]) == 1 for line in values["lines"])
    again = forgetless(*call, cwd=tmp_path)
    assert "0 done, 4 finished earlier, 0 failed" in again.stdout


def test_the_list_shows_what_each_item_costs(tmp_path):
    done = forgetless("reproduce", "--list", cwd=tmp_path)
    assert re.search(r"table1 +805 +7\.\d+ ", done.stdout)
    assert re.search(r"filter-dynamics +1 ", done.stdout)
    rows = forgetless("reproduce", "--list", "--rows", "er", cwd=tmp_path).stdout
    assert "table1" in rows
    assert "k-tau" not in rows  # which has no rows to choose from


def test_the_demo_ends_with_a_table_and_a_page(tmp_path, monkeypatch, capsys):
    plan = demo.PLAN.read_text().replace("repair", "steps = 5\nrepair").replace('"k-fpf"', '"k-fpf"\nevery = 10')
    (tmp_path / "demo.toml").write_text(f"epochs = 1\nbatch = 50\nreplay = 50\n{plan}")
    monkeypatch.setattr(demo, "PLAN", tmp_path / "demo.toml")

    def sweep_in_this_process(runs, out):
        for settings, result in run_lanes([run.settings for run in runs], 1, out):
            assert isinstance(result, record.Record)
            yield RunDone(settings, earlier=False)

    monkeypatch.setattr(demo, "sweep", sweep_in_this_process)
    demo.demo(tmp_path, seeds=1)
    printed = capsys.readouterr().out
    for label in ("sgd", "fpf+sgd", "k-fpf-ce", "er", "derpp", "gdumb", "joint"):
        assert label in printed
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert len(list(tmp_path.glob("*/record.json"))) == 7

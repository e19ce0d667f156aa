"""The README's code runs and its numbers are those of the records."""

import json
import re
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import forgetless
from forgetless.experiments.settings import resolve
from forgetless.experiments.sweep import plan, tomllib
from helpers import command

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_training_of_the_readme_runs(capsys):
    code = re.findall(r"```python\n(.*?)```", README, re.S)[1]
    exec(code, {})
    assert "fc3" in capsys.readouterr().out


def test_the_commands_of_the_readme_are_understood(tmp_path, monkeypatch):
    (block,) = re.findall(r"```\n(forgetless demo.*?)```", README, re.S)
    for line in block.splitlines():
        words = line.partition("#")[0].split()[1:]
        if words[0] == "run":
            options = [word for word in words[3:] if word.startswith("--")]
            helped = command("run", "--help", cwd=tmp_path).stdout
            assert all(option in helped for option in options), line
            resolve(words[1], words[2], {})
        else:
            assert words[0] in ("demo", "list", "data", "sweep", "search", "report", "reproduce", "resume")


def test_the_plan_of_the_readme_is_one():
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.S)
    assert len(plan(tomllib.loads(text))) == 3 * 2 * (4 + 2)


def test_the_loop_of_the_readme_runs(capsys):
    code = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    torch.manual_seed(0)
    model = forgetless.networks.mlp(4, inputs=6)
    generator = torch.Generator().manual_seed(0)
    y = [torch.randint(2, (8,), generator=generator) + 2 * (step // 100) for step in range(200)]
    stream = [(F.one_hot(labels, 6).float(), labels) for labels in y]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exec(code, {"model": model, "stream": stream, "optimizer": optimizer, "F": F})
    assert "chosen" in capsys.readouterr().out


def test_the_accuracies_of_the_readme_are_those_of_the_record():
    record = json.loads((ROOT / "benchmarks/records/digits.json").read_text())["accuracy_percent"]
    shown = re.findall(r"\| ([\d.]+) ± ([\d.]+) % \|", README)
    assert [(float(mean), float(std)) for mean, std in shown] == [
        (round(row["mean"], 1), round(row["std"], 1)) for row in record.values()
    ]


def test_the_costs_of_observe_in_the_readme_are_those_of_the_records():
    for name, shown in (("resnet18-cpu", "0.3 %"), ("resnet18-h200", "12 %"), ("mlp-cpu", "43 %")):
        percent = json.loads((ROOT / f"benchmarks/records/observe-{name}.json").read_text())["overhead_percent"]
        assert shown == (f"{percent:.1f} %" if percent < 1 else f"{percent:.0f} %")
        assert shown in README


def test_the_time_of_a_report_in_the_readme_is_that_of_the_record():
    made = json.loads((ROOT / "benchmarks/records/report-cpu.json").read_text())
    assert made["records"] == 1000
    assert f"records take {made['seconds'][2]:.1f} s" in README


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_results_page_is_what_the_records_give():
    subprocess.run([sys.executable, ROOT / "benchmarks" / "tables.py", "--check"], check=True)

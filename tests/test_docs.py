"""The code of README.md runs, its numbers match the records, and the generated pages are up to date."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forgetless.experiments import record
from forgetless.experiments.settings import resolve
from forgetless.memory.settings import Memory
from forgetless.repair.settings import Finetune, Tracking

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RECORDS = ROOT / "benchmarks" / "records"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("notebooks/*.ipynb")]
)


def benchmark_record(name):
    return json.loads((RECORDS / name).read_text())


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_readme_demo_table_matches_the_record():
    rows = benchmark_record("demo.json")["rows"]
    table = [(row["mean"], row["std"], row["flops"] / rows["sgd"]["flops"]) for row in rows.values()]
    expected = [f"{mean:.1f} ± {std:.1f} {compute:.2f}" for mean, std, compute in table]
    shown = re.findall(r"\| \**([\d.]+ ± [\d.]+)\** \| \**([\d.]+) ×", README)
    assert [" ".join(cells) for cells in shown] == expected
    assert round(100 * rows["fpf+sgd"]["share"]) == 16
    assert f"{rows['derpp']['flops'] / rows['fpf+sgd']['flops']:.1f} times its compute" in README


def test_tutorial_accuracies_match_the_record():
    means = [round(row["mean"], 1) for row in benchmark_record("digits.json")["accuracy_percent"].values()]
    text = (ROOT / "docs" / "tutorial.md").read_text()
    assert all(str(mean) in text for mean in means[:3])  # plain SGD, FPF, k-FPF


def test_site_cost_of_observe_matches_the_records():
    names = ("resnet18-cpu", "resnet18-h200", "mlp-cpu", "budget-mlp-x86", "budget-mlp-arm")
    percents = [benchmark_record(f"observe-{name}.json")["overhead_percent"] for name in names]
    text = (ROOT / "docs" / "loop.md").read_text()
    assert all((f"{percent:.1f} %" if percent < 1 else f"{percent:.0f} %") in text for percent in percents)


def test_readme_states_how_often_finish_harmed():
    runs = benchmark_record("no-harm-fresh.json")["runs"]
    assert [run["seed"] for run in runs] == list(range(2000, 2200))
    limits = [max(3 * run["loss"]["se"], 0.05 * run["loss"]["before"]) for run in runs]
    rose = [run for run, limit in zip(runs, limits, strict=True) if run["loss"]["change"] > limit]
    fell = [run for run in runs if run["score"]["change"] < -max(3 * run["score"]["se"], 1.0)]
    assert len(rose) == 4
    assert not fell
    assert all(run["capacity"] < 100 for run in rose)
    text = re.sub(r"\[(\w+)\]\(.*?\)", r"\1", " ".join(README.split()))
    assert "Of 200 random trainings, `finish()` raised the test loss of four by more than noise, but lowered" in text
    assert "no score by more. All four had buffers of fewer than 100 examples." in text


def test_api_page_states_the_defaults_of_fpf():
    settings = {**vars(Memory()), **vars(Tracking()), **vars(Finetune())}
    (sentence,) = re.findall(r"^The defaults of `FPF`.*$", (ROOT / "docs" / "api.md").read_text(), re.M)
    shown = dict(re.findall(r"`(\w+)` \"?(\w+)", sentence.partition(":")[2]))
    assert len(shown) == 6
    assert shown == {name: str(settings[name]) for name in shown}


@pytest.mark.parametrize("page", ["faq", "method"])
def test_quoted_decimals_appear_on_a_linked_page(page):
    text = re.sub(r"^(```|\$\$).*?^(```|\$\$)$", "", (ROOT / "docs" / f"{page}.md").read_text(), flags=re.M | re.S)
    for paragraph in text.split("\n\n"):
        linked = {ROOT / "docs" / name for name in re.findall(r"\]\(([\w-]+\.md)", paragraph)}
        shown = [float(number) for file in linked for number in re.findall(r"\d+\.\d+", file.read_text())]
        for number in re.findall(r"(?<!`)\b\d+\.\d(?= ?%| points)", paragraph):
            assert float(number) in {round(value + 1e-9, 1) for value in shown}, f"{number} in {paragraph!r}"


def test_picture_and_its_texts_match_the_record():
    runs = benchmark_record("picture.json")["runs"]
    assert {round(100 * run["share"]) for run in runs} == {16}
    picture = (ROOT / "docs" / "picture.svg").read_text()
    assert "16 %" in picture
    assert f"{sum(run['repaired'][0] for run in runs) / len(runs):.0f} %," in picture


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and target != "api.md":  # whose anchors come from docstrings
            assert anchor in anchors(file.read_text()), f"{page.name} links to {target}#{anchor}"


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_results_readme_counts_the_records():
    text = (ROOT / "results" / "README.md").read_text()
    counts = {file: int(count) for file, count in re.findall(r"^\| `([\w-]+\.jsonl)` \| (\d+) \|", text, re.M)}
    files = (ROOT / "results").glob("*.jsonl")
    assert counts == {file.name: len(file.read_bytes().splitlines()) for file in files}


def test_the_command_of_the_recipe_with_50_epochs_plans_its_runs():
    recorded = benchmark_record("recipe-50-epochs.json")
    assert recorded["command"] == "forgetless run seq-cifar10 --epochs 50 --seed SEED --device cuda"
    for run in recorded["runs"]:
        planned, _ = resolve("seq-cifar10", None, {"epochs": 50, "seed": run["seed"], "device": "cuda"})
        assert planned.id == run["id"]
        assert run["accuracy"] == round(sum(run["accuracies"]) / 5, 2)


def test_results_readme_example_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "results" / "README.md").read_text(), re.S)
    exec(code, {})
    assert len(capsys.readouterr().out.splitlines()) == len(record.read_lines(Path("results/seq-cifar10.jsonl")))


def test_benchmarks_index_lists_every_script():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    listed = set(re.findall(r"^\| `(\w+\.py)`", text, re.M))
    assert {file.name for file in (ROOT / "benchmarks").glob("*.py")} <= listed


def test_generated_pages_match_the_records():
    subprocess.run([sys.executable, ROOT / "benchmarks" / "tables.py", "--check"], check=True)


def test_a_contradicted_claim_stops_the_build():
    code = (
        "from pages.template import claim\n"
        "assert claim(True, lambda: 'Water is wet.') == 'Water is wet.'\n"
        "claim(False, lambda: 'Water is dry.')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True)
    assert "the records contradict this sentence: 'Water is dry.'" in done.stderr


def test_plain_loop_values_are_means_over_seeds_and_extremes_over_rows(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    page = importlib.import_module("pages.defaults")
    accuracies = {  # of two seeds
        ("SGD 0.1", "abrupt"): {"alone": (18, 20), "fpf": (88, 91), "replay": (80, 81)},
        ("SGD 0.1", "fading"): {"alone": (40, 42), "fpf": (90, 94), "replay": (70, 72)},
        ("AdamW 0.003", "abrupt"): {"alone": (16, 17), "fpf": (84, 89), "replay": (92, 93)},
        ("AdamW 0.003", "fading"): {"alone": (30, 31), "fpf": (91, 92), "replay": (60, 62)},
        ("AdamW 0.001", "weekly updates"): {"fpf": (87, 89)},
    }
    rows = []
    for (optimizer, stream), kinds in accuracies.items():
        for kind, found in kinds.items():
            cost = {"abrupt": 0.9, "fading": 0.95}.get(stream, 7.0) if kind == "fpf" else float(kind == "replay")
            runs = [{"before": accuracy - 45, "accuracy": accuracy, "cost": cost} for accuracy in found]
            rows.append({"optimizer": optimizer, "stream": stream, "kind": kind, "runs": runs})
    loop = page.plain_loop({"rows": rows})
    assert loop["seeds"] == 2
    assert loop["table"].splitlines()[2:] == [
        "| SGD 0.1 | 19.0 | 89.5 | 80.5 | 41.0 | 92.0 | 71.0 |",
        "| AdamW 0.003 | 16.5 | 86.5 | 92.5 | 30.5 | 91.5 | 61.0 |",
    ]
    assert loop["lowest"] == {"alone": 16.5, "fpf": 86.5, "replay": 61}
    assert loop["highest"] == {"alone": 41, "fpf": 92, "replay": 92.5}
    assert loop["best"]["abrupt"] == {"alone": 19, "fpf": 89.5, "replay": 92.5}
    assert loop["best"]["fading"] == {"alone": 41, "fpf": 92, "replay": 71}
    assert (loop["lowest_run"], loop["lowest_before"], loop["highest_before"]) == (84, 41.5, 47)
    assert loop["replay_ahead"] == ["by 6.0 points with AdamW 0.003 on the abrupt stream"]
    assert loop["cost"] == {"fpf": 0.95, "replay": 1}  # without the weekly updates
    assert loop["weekly"] == {"optimizer": "AdamW 0.001", "accuracy": 88}


@pytest.fixture
def language_page(monkeypatch):
    """Return the module that computes the values of docs/smollm2.md."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("pages.language")


def test_recovery_of_a_language_model_is_the_mean_over_older_domains(language_page):
    learned = {"speeches": 3.0, "German": 2.0, "Python": 1.0, "French": 2.0}
    plain = {"seed": 0, "tokens": 1000, "learned": learned}
    plain["losses"] = {"speeches": 3.5, "German": 2.4, "Python": 2.0, "French": 2.0, "reference": 4.0}
    run = {"seed": 0, "tokens": 1050, "seconds": 30, "share": 0.5}
    run["losses"] = {"speeches": 3.25, "German": 2.1, "Python": 2.0, "French": 2.02, "reference": 3.9}
    assert language_page.recovery(run, plain) == pytest.approx((50 + 75 + 0) / 3)
    twin = run | {"seed": 1, "losses": run["losses"] | {"Python": 1.7}}  # recovers (50 + 75 + 30) / 3
    summary = language_page.summary([run, twin], {0: plain, 1: plain | {"seed": 1}})
    assert summary == pytest.approx(
        {
            "recovered": (125 + 155) / 6, "error": 5, "newest": 1, "untouched": -2.5, "tokens": 5, "seconds": 30,
            "share": 50,
        }
    )  # fmt: skip


def test_tokens_that_are_only_predicted_can_count_in_full(language_page):
    report = "(5 of 40 examples held out)\nadam with rate 0.001, 10 steps kept of 10"
    plain = {"tokens": 256 * 1000}
    run = {"tokens": 256 * (1000 + 10 * 8 + 5 + 15 / 3), "report": report}  # 15 sequences were only predicted
    assert language_page.tokens_in_full(run, plain) == pytest.approx(10)


def test_rows_of_smollm2_have_the_same_seeds(language_page):
    runs = benchmark_record("language.json")["runs"]
    for name in language_page.NAMES:
        assert sorted(run["seed"] for run in runs if run["row"] == name) == [0, 1, 2]


def test_any_layout_takes_the_fastest_way_of_each_problem(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    page = importlib.import_module("pages.fused")
    case = {"lanes": 8, "batch": 32, "part": "convolutions", "direction": "forward"}
    stem = case | {"problem": "stem", "occurrences": 1}
    block = case | {"problem": "block", "occurrences": 4}
    rows = [
        stem | {"variant": "streams", "microseconds": 70},
        stem | {"variant": "grouped", "microseconds": 50},
        block | {"variant": "streams", "microseconds": 20},
        block | {"variant": "grouped", "microseconds": 30},
        block | {"variant": "grouped", "microseconds": 1, "lanes": 16},
    ]
    assert page.any_layout(rows, 8, 32, "convolutions") == pytest.approx(0.130)
    assert page.ratio({"streams": 3.0, "any layout": 2.0}, "any layout") == 1.5

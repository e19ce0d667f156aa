"""What users see: output, files, and messages."""

import dataclasses
import json
import re
import signal
import subprocess
import sys

import pytest

from forgetless import __version__
from forgetless.cli import demo
from forgetless.experiments import record
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.settings import resolve
from forgetless.experiments.sweep import RunDone
from helpers import LIMIT, command, wait_until

COMMAND = [sys.executable, "-c", "from forgetless.cli import main; main()"]
QUICK = ["--epochs", "1", "--batch", "50", "--replay", "50"]


def forgetless(*arguments, cwd, expect=0, **environment):
    done = command(*arguments, cwd=cwd, **environment)
    assert done.returncode == expect, done.stderr
    return done


def test_a_run_prints_a_table_and_writes_a_record(tmp_path):
    done = forgetless("run", "seq-digits", "derpp", "--fpf", "--alpha", "0.3", *QUICK, cwd=tmp_path)
    assert "fpf+derpp" in done.stdout
    assert "given:" in done.stderr
    assert "alpha 0.3" in done.stderr
    (record,) = tmp_path.glob("runs/*/record.json")
    values = json.loads(record.read_text())
    assert values["settings"]["options"] == {"alpha": 0.3}
    assert values["chosen"] == ["fc3"]
    again = forgetless("run", "seq-digits", "derpp", "--fpf", "--alpha=0.3", *QUICK, cwd=tmp_path)
    assert "this run is finished; remove runs/" in again.stderr


def test_an_error_in_user_code_shows_its_place(tmp_path):
    (tmp_path / "mine.py").write_text("def shapes():\n    return {}['images']\n")
    done = forgetless("run", "mine:shapes", "er", cwd=tmp_path, expect=1)
    said = done.stderr.splitlines()
    assert said[0] == "default: network mlp, epochs 1, batch 32, lr 0.1, buffer 500, replay 32"
    assert said[-2] == "error: KeyError: 'images'"
    assert said[-1].endswith("mine.py, line 2, in shapes: return {}['images']")
    assert "Traceback" not in done.stderr


def test_an_error_caused_by_user_code_shows_its_place(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from forgetless.methods import Method\nclass Bytes(Method):\n    def step(self, learner, batch):\n"
        "        return learner.forward(batch.x)\n"
    )
    done = forgetless("run", "seq-digits", "mine:Bytes", *QUICK, cwd=tmp_path, expect=1)
    said = done.stderr.splitlines()
    assert "Images are uint8; learner.augment(batch.x) returns inputs" in said[-2]
    assert said[-1].endswith("mine.py, line 4, in step: return learner.forward(batch.x)")
    assert "Traceback" not in done.stderr


def test_json_is_one_line(tmp_path):
    done = forgetless("run", "seq-digits", "sgd", "--k-fpf", "--kd", 0.5, "--json", *QUICK, cwd=tmp_path)
    (line,) = done.stdout.splitlines()
    values = json.loads(line)
    assert values["label"] == "k-fpf-kd"
    for name in ("accuracy", "accuracy_matrix", "forgetting", "flops", "seconds", "sensitivity", "chosen", "id"):
        assert name in values
    assert json.loads((tmp_path / "runs" / values["id"] / "record.json").read_text()) == values


def test_tensorboard_files_lie_next_to_the_record(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = forgetless("run", "seq-digits", "sgd", "--fpf", "--json", "--log", "tensorboard", *QUICK, cwd=tmp_path)
    values = json.loads(done.stdout)
    read = EventAccumulator(str(tmp_path / "runs" / values["id"] / "tensorboard")).Reload()
    assert [point.value for point in read.Scalars("accuracy/task_1")] == pytest.approx(
        [row[0] for row in values["accuracy_matrix"]], abs=0.001
    )
    assert [point.value for point in read.Scalars("chosen/fc3")] == [1.0]
    assert b"| method | sgd |" in read.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_a_logger_writes_where_its_settings_say(logger, tmp_path):
    pytest.importorskip(logger)
    where = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/tracked.db"}
    done = forgetless("run", "seq-digits", "sgd", "--log", logger, *QUICK, cwd=tmp_path, **where)
    assert "record: runs/" in done.stdout
    found = tmp_path.glob("runs/*/wandb/offline-run-*/run-*.wandb" if logger == "wandb" else "tracked.db")
    assert [file.stat().st_size > 1000 for file in found] == [True]


def test_list_options_reach_the_run(tmp_path):
    done = forgetless(
        "run", "seq-digits", "er", "--fpf", "--groups", "fc1,fc3", "--order", "9,8,7,6,5,4,3,2,1,0", "--freeze", "fc2",
        "--validation", "--seed", 3, "--json", *QUICK, cwd=tmp_path,
    )  # fmt: skip
    values = json.loads(done.stdout)
    assert values["chosen"] == ["fc1", "fc3"]
    assert values["settings"]["order"] == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert values["settings"]["freeze"] == ["fc2"]
    assert values["settings"]["validation"] is True
    assert values["settings"]["seed"] == 3


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "seq-digit", "er"], "error: no stream named 'seq-digit'; did you mean 'seq-digits'?"),
        (["run", "seq-digits", "derp"], "error: no method named 'derp'; did you mean 'derpp'?"),
        (["run", "seq-digits", "er", "--alhpa", "3"], "error: er has no setting 'alhpa'"),
        (["run", "seq-digits", "er", "--epohcs", "3"], "error: er has no setting 'epohcs'; did you mean 'epochs'?"),
        (
            ["run", "seq-digits", "./mine.py:Mine"],
            "method './mine.py:Mine' is a file; it must be module:object, mine:Mine",
        ),
        (["run", "seq-digits", "own/mine.py:Mine"], "is a file; it must be module:object, own.mine:Mine"),
        (["run", "seq-digits", "/elsewhere/mine.py:Mine"], "is a file; it must be module:object, mine:Mine"),
        (
            ["run", "seq-digits", "er", "--alpha"],
            "error: --alpha is not an option of this command; as a setting of er it needs",
        ),
        (["run", "seq-digits", "er", "--epochs", "0"], "error: epochs is 0; it must be a whole number of 1 or more"),
        (["run", "seq-digits", "er", "--buffer", "5"], "error: buffer is 5, but 10 examples are drawn at a time"),
        (["run", "seq-digits", "er", "--kd", "0.5"], "error: kd is a setting of FPF"),
        (["run", "seq-digits", "er", "--fpf", "--groups", "fc4"], "error: no group named 'fc4'; did you mean 'fc3'"),
        (["run", "seq-digits", "er", "--fpf", "--k-fpf"], "error: --fpf and --k-fpf exclude each other"),
        (["run", "seq-digits", "er", "--order", "1,a"], "error: order is '1,a'; it must be a seed"),
        (["run", "seq-digits", "er", "--order", "1,2"], "error: order is [1, 2]; it must name each of the classes"),
        (
            ["run", "seq-digits", "er", "--log", "tensorbord"],
            "error: log is 'tensorbord'; it must be one of tensorboard, wandb, mlflow",
        ),
        (["run", "seq-digits", "er", "--precision", "fp8"], "error: precision is 'fp8'; it must be one of fp32"),
        (["run", "seq-digits", "er", "--device", "cuda:99"], "GPUs here; use cpu"),
        (["run", "seq-digits", "er", "--epochs", "two"], "error: Invalid value for '--epochs'"),
        (["run", "rot-mnist", "icarl"], "is missing: run `forgetless data get mnist`"),
        (["run", "seq-mnist", "er"], "is missing: run `forgetless data get mnist`, or set FORGETLESS_DATA"),
        (["data", "get", "mnits"], "error: no data set named 'mnits'; did you mean 'mnist'?"),
        (["data", "get", "pacs"], "error: pacs cannot be downloaded: request it from its authors"),
        (["run", "seq-digits", "er", "--lr", "1e20"], "error: the loss became nan at step "),
        (
            ["run", "seq-digits", "er", "--checkpoint-steps", "-1"],
            "error: checkpoint_steps is -1; it must be a whole number of 0 or more",
        ),
        (
            ["reproduce", "k-tau", "--rows", "er"],
            "error: rows is er, but k-tau has no rows to choose from: leave it out",
        ),
        (
            ["reproduce", "bn-dynamics", "--buffer", "200"],
            "error: buffer is 200, but bn-dynamics has no buffer to choose",
        ),
        (["reproduce", "filter-dynamics", "--retry"], "error: filter-dynamics is one run in this process"),
        (
            ["run", "seq-digits", "er", "--fpf", "--ft-lr", "0"],
            "error: ft_lr is 0.0; it must be",
        ),
        (["run", "seq-digits", "sgd", "--k-fpf", "--kd", "-1"], "error: kd is -1.0; it must be a finite number of 0"),
        (
            ["run", "seq-digits", "derpp", "--alpha", "nan"],
            "error: alpha is nan; it must be a finite number of 0 or more",
        ),
        (
            ["search", "seq-digits", "sgd", "--fpf", "--distill"],
            "error: --distill adds λ to the paper's grid",
        ),
        (
            ["reproduce", "table1", "--rows", "er,fpf+err"],
            "error: table1 has no row named 'fpf+err'; did you",
        ),
        (["reproduce", "tabel1"], "error: no table or figure named 'tabel1'; did you mean 'table1'? known: table1"),
        (["reproduce"], "error: name what to reproduce: one of table1, mlp-vgg"),
        (["report", "runs", "--table", "t.xls"], "error: table is 't.xls'; its name must end in .csv or .tex"),
        (["rnu"], "error: No such command 'rnu'"),
        (["run", "seq-digits", "er", "--seed", "one"], "'one'"),
        (["run", "seq-digits", "er", "--lr", "fast"], "'fast'"),
        (["run", "seq-digits", "er", "--fpf", "--groups", ","], "error: groups is ','; it must be auto, all, or names"),
        (["run", "seq-digits", "er", "--freeze", ""], "error: freeze is ''; it must be a list of names with commas"),
        (["run", "seq-digits", "sgd", "--weight-decay", "-1"], "error: weight_decay is -1.0; it must be a finite"),
        (
            ["run", "seq-digits", "derpp", "--alpha", "much"],
            "error: alpha is 'much'; it must be a finite number of 0 or more",
        ),
        (["run", "seq-digits", "sgd", "--network", "torch.nn:Linear"], "error: network 'torch.nn:Linear' is called"),
        (["run", "seq-digits", "sgd", "--network", "math:pi"], "error: network 'math:pi' is a float; it must be a"),
        (["reproduce", "table1", "--buffer", "123"], "with buffer 123; it has joint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_ends_with_one_helpful_line(arguments, message, tmp_path):
    done = forgetless(*arguments, cwd=tmp_path, expect=2, FORGETLESS_DATA=str(tmp_path / "empty"))
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*/record.json"))


def test_data_is_listed_and_checked(tmp_path):
    empty = {"FORGETLESS_DATA": str(tmp_path)}
    assert "mnist" in forgetless("data", "list", cwd=tmp_path, **empty).stdout
    (tmp_path / "organamnist.npz").write_bytes(b"broken")
    done = forgetless("data", "check", cwd=tmp_path, expect=1, **empty)
    assert "organamnist.npz is corrupt" in done.stdout
    assert "pathmnist" not in done.stdout


def test_an_interrupted_run_resumes_from_its_checkpoint(tmp_path):
    call = ["run", "seq-digits", "derpp", "--k-fpf", "--steps", "20", "--epochs", "4"]
    often = ["--checkpoint-steps", "10"]
    given = call

    def written():
        return {file: file.stat().st_mtime_ns for file in tmp_path.glob("runs/*/checkpoint.safetensors")}

    for number in (signal.SIGINT, signal.SIGTERM):
        before = written()
        process = subprocess.Popen([*COMMAND, *given, *often], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        wait_until(lambda before=before: written() != before, of=process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 130, errors
        assert "interrupted; the same command resumes" in errors
        (file,) = tmp_path.rglob("runs/*/*")
        assert file.name == "checkpoint.safetensors"
        given = ["resume", str(file.parent)]
    forgetless("resume", file.parent, cwd=tmp_path)
    assert not file.exists()
    (tmp_path / "alone").mkdir()
    forgetless(*call, cwd=tmp_path / "alone")
    resumed, alone = (
        json.loads(next(folder.glob("runs/*/record.json")).read_text()) for folder in (tmp_path, tmp_path / "alone")
    )
    assert {**resumed, "seconds": 0} == {**alone, "seconds": 0}
    again = forgetless("resume", file.parent, "--json", cwd=tmp_path)
    assert "this run is finished: " in again.stderr
    assert json.loads(again.stdout)["id"] == file.parent.name
    assert "error: there is no checkpoint nowhere" in forgetless("resume", "nowhere", cwd=tmp_path, expect=2).stderr


def test_a_report_is_written_without_torch(tmp_path):
    for method in ("er", "sgd"):
        forgetless("run", "seq-digits", method, *QUICK, "--json", cwd=tmp_path)
    code = (
        "import sys\nfrom forgetless.cli.app import app\n"
        "app(['report', 'runs', '--out', 'page.html', '--table', 'table.csv', '--figures', 'figures', '--formats', "
        "'svg'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "page: page.html" in done.stdout
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "figures" / "cost.svg").exists()
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert sorted(line.split(",")[1] for line in lines) == ["er", "method", "sgd"]
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "record.json").write_text("{}")
    skipped = forgetless("report", "runs", cwd=tmp_path)
    assert "skipped: runs/torn/record.json is not a record: format None, this version reads 1" in skipped.stderr
    assert (
        "error: there is no record in nowhere; records are <folder>/<id>/record.json or .jsonl"
        in forgetless("report", "runs", "nowhere", cwd=tmp_path, expect=2).stderr
    )
    again = forgetless(
        "report", "runs", "--figures", "f", "--formats", "gif", "--out", "new/page.html", cwd=tmp_path, expect=2
    )
    assert "formats has 'gif'; expected png, svg, pdf" in again.stderr
    assert not (tmp_path / "new").exists()


def test_records_of_another_version_are_named(tmp_path):
    for seed in ("0", "1"):
        forgetless("run", "seq-digits", "sgd", *QUICK, "--seed", seed, "--json", cwd=tmp_path)
    file = sorted(tmp_path.glob("runs/*/record.json"))[0]
    made = json.loads(file.read_text())
    made["versions"]["forgetless"] = "0.1.0"
    file.write_text(json.dumps(made))
    seed = str(made["settings"]["seed"])
    again = forgetless("run", "seq-digits", "sgd", *QUICK, "--seed", seed, cwd=tmp_path)
    assert "this run is finished (version 0.1.0); remove " in again.stderr
    assert "sgd: its records come from the versions 0.1.0, " in forgetless("report", "runs", cwd=tmp_path).stderr


def leave(made, out, seed, *, validation=False, **changes):
    """Write a record of SGD on the digits with the numbers of another record."""
    settings, _ = resolve("seq-digits", "sgd", {"seed": seed, "validation": validation})
    own = {"id": settings.id, "label": settings.label, "settings": settings.to_dict()}
    record.write(dataclasses.replace(made, **own, **changes), record.path(out, settings))
    return settings.id


TOGETHER = {  # commands that average the records of two seeds
    "sweep": ["plan.toml"],
    "search": ["seq-digits", "sgd", "--grid", "grid.toml", "--seeds", 2],
    "reproduce": ["table1", "--quick", "--rows", "sgd"],
    "report": ["runs", "--table", "table.csv"],
}


def plans(folder):
    (folder / "plan.toml").write_text('stream = "seq-digits"\nmethod = "sgd"\nseeds = 2\n')
    (folder / "grid.toml").write_text("lr = [0.1]\n")


@pytest.mark.parametrize("name", TOGETHER)
def test_commands_name_mixed_versions(name, records, tmp_path):
    plans(tmp_path)
    leave(records[0], tmp_path / "runs", 0, validation=True)
    for seed in (0, 1):
        leave(records[seed], tmp_path / "runs", seed)
    assert "its records come from" not in forgetless(name, *TOGETHER[name], cwd=tmp_path).stderr
    leave(records[1], tmp_path / "runs", 1, versions={"forgetless": "0.1.0"})
    done = forgetless(name, *TOGETHER[name], cwd=tmp_path)
    assert f"sgd: its records come from the versions 0.1.0, {__version__}\n" in done.stderr


@pytest.mark.parametrize("name", TOGETHER)
def test_a_record_of_other_tasks_is_skipped_and_named(name, records, tmp_path):
    plans(tmp_path)
    runs = tmp_path / "runs"
    leave(records[0], runs, 0, validation=True)
    ids = [leave(records[0], runs, 0), leave(records[1], runs, 1, accuracy_matrix=[[1.0]], anytime=[1.0], accuracy=1.0)]
    kept, left = sorted(ids) if name == "report" else ids  # which sorts the files by name
    accuracy = record.read(runs / kept / "record.json").accuracy
    done = forgetless(name, *TOGETHER[name], cwd=tmp_path)
    assert (
        f"skipped: {left}: the records {kept} and {left} have the same settings but for the seed, and other tasks or "
        "groups of parameters: one is of code that was changed since; remove it\n"
    ) in done.stderr
    if name == "sweep":
        assert done.stdout.splitlines()[-1] == "0 done, 2 finished earlier, 0 failed; records: runs"
        assert re.search(rf"sgd +{accuracy:.1f} +\d", done.stdout)
    elif name == "report":
        row = (tmp_path / "table.csv").read_text().splitlines()[1].split(",")
        assert (float(row[2]), row[4], row[-1]) == (accuracy, "1", kept)
    elif name == "search":
        (file,) = runs.glob("search-*.json")
        values = json.loads(file.read_text())
        assert (values["ids"], values["accuracies"]) == ([kept], [accuracy])
        assert f"on the test set {accuracy:.2f} % with one seed" in done.stdout
    else:
        (row,) = json.loads((runs / "reproduce-table1-sgd-quick.json").read_text())["lines"]
        assert (row["records"], row["ours"]) == ([kept], [round(accuracy, 3), None])


def test_the_first_record_of_the_same_settings_counts(records, tmp_path):
    name = leave(records[0], tmp_path / "one", 0, accuracy=70.0)
    about = {"seconds": {"total": 9.0}, "versions": {"forgetless": "0.1.0"}, "sources": {"lr": "given"}}
    leave(records[0], tmp_path / "copy", 0, accuracy=70.0, **about)
    leave(records[0], tmp_path / "other", 0, accuracy=50.0)
    alike = forgetless("report", "one", "copy", cwd=tmp_path)
    assert "skipped" not in alike.stderr
    done = forgetless("report", "one", "other", "--table", "table.csv", cwd=tmp_path)
    files = [f"{folder}/{name}/record.json" for folder in ("other", "one")]
    assert f"skipped: {files[0]} has other numbers than {files[1]}, the record of the same settings\n" in done.stderr
    assert (tmp_path / "table.csv").read_text().splitlines()[1].split(",")[2] == "70.0"


def test_reproductions_with_other_seeds_have_other_files(records, tmp_path):
    for seed in (0, 1):
        leave(records[seed], tmp_path / "runs", seed)
    for seeds in (1, 2):
        forgetless("reproduce", "table1", "--quick", "--rows", "sgd", "--seeds", seeds, cwd=tmp_path)
    for seeds in (1, 2):
        (row,) = json.loads((tmp_path / "runs" / f"reproduce-table1-sgd-seeds-{seeds}-quick.json").read_text())["lines"]
        assert row["seeds"] == seeds


def test_a_warning_is_one_line(tmp_path):
    done = forgetless("run", "seq-digits", "er", *QUICK, "--fpf", "--threshold", "99", cwd=tmp_path)
    (line,) = [line for line in done.stderr.splitlines() if "nothing was finetuned" in line]
    assert line.startswith("warning: nothing was finetuned at the end: no S_g is above the threshold 99.0")
    assert "training.py" not in done.stderr


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


def test_the_version_is_shown(tmp_path):
    assert forgetless("--version", cwd=tmp_path).stdout == f"forgetless {__version__}\n"
    done = subprocess.run([sys.executable, "-m", "forgetless", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"forgetless {__version__}\n"


def test_folder_names_are_printed_and_linked_verbatim(tmp_path):
    out = "q[/a][bold]:smile: " + 30 * "long" + "/a%20b#c?d"
    done = forgetless("run", "seq-digits", "sgd", *QUICK, "--out", out, cwd=tmp_path)
    (record,) = tmp_path.glob("**/record.json")
    assert f"record: {out}/{record.parent.name}/record.json\n" in done.stdout
    done = forgetless("report", out, "--out", f"{out}/page.html", "--table", f"{out}/table.csv", cwd=tmp_path)
    assert f"page: {out}/page.html\ntable: {out}/table.csv\n" in done.stdout
    page = (tmp_path / out / "page.html").read_text()
    assert f'href="{record.parent.name}/record.json"' in page
    forgetless("report", out, "--out", "page.html", cwd=tmp_path)
    assert f'long/a%2520b%23c%3Fd/{record.parent.name}/record.json"' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('method = "sgd"\nrepair = "fpf"\nkd = -1', "kd is -1; it must be a finite number of 0 or more"),
        ('method = "sgd"\nrepair = "fpf"\nthreshold = nan', "threshold is nan; it must be a finite number"),
        ('method = "derpp"\nalpha = -1.0', "alpha is -1.0; it must be a finite number of 0 or more"),
        ('method = "derpp"\nalpha = "x"', "alpha is 'x'; it must be a finite number of 0 or more"),
        ('method = "sgd"\nnetwork = "nowhere:small"', "network 'nowhere:small': no module named 'nowhere'"),
        ('method = "nowhere.Method"', "method 'nowhere.Method': no module named 'nowhere'"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_an_invalid_plan_is_refused_before_any_run(tmp_path, line, match, dry):
    (tmp_path / "plan.toml").write_text(
        f'stream = "seq-digits"\nepochs = 1\n[[runs]]\nmethod = "sgd"\n[[runs]]\n{line}\n'
    )
    done = forgetless("sweep", "plan.toml", *(["--dry-run"] if dry else []), cwd=tmp_path, expect=2)
    assert match in done.stderr
    assert not list(tmp_path.glob("runs/*"))


def test_repair_is_not_an_option(tmp_path):
    done = forgetless("run", "seq-digits", "sgd", "--fpf", "--repair", "none", cwd=tmp_path, expect=2)
    assert "repair is 'none'; on the command line it is --fpf, --k-fpf or neither" in done.stderr


def test_a_word_setting_may_look_like_a_number(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from forgetless.methods import Method, setting\n"
        "from forgetless.methods.sgd import SGD\n"
        "@dataclass\n"
        "class Mine(Method):\n"
        "    kind: str = setting('usual', 'which')\n"
        "    rate: float = setting(1.0, 'how fast')\n"
        "    def step(self, learner, batch):\n"
        "        return SGD().step(learner, batch)\n"
    )
    given = ["--kind", "1e3", "--rate", "2"]
    done = forgetless("run", "seq-digits", "mine:Mine", *given, *QUICK, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["settings"]["options"] == {"kind": "1e3", "rate": 2}


def test_no_command_shows_the_help(tmp_path):
    assert forgetless(cwd=tmp_path, expect=2).stderr.startswith("Usage:")

"""``forgetless sweep``: plans, progress, failures; and what commands that average records say."""

import json
import re
import subprocess
import sys

import pytest
from calls import forgetless, leave, write_plans

from forgetless import __version__
from forgetless.experiments import record

SWEEP = ["sweep", "plan.toml", "--workers", "1"]  # starting a second process takes longer than the runs


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


PLAN = """
stream = "seq-digits"
epochs = 1
batch = 50
method = ["sgd", "joint"]
buffer = [100, 200]
"""


def test_a_dry_run_shows_what_differs(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    done = forgetless("sweep", "plan.toml", "--dry-run", cwd=tmp_path)
    names = [line.split(maxsplit=1)[1].strip() for line in done.stdout.splitlines()]
    assert names == [
        "run",
        *(f"{m}, buffer {b}" for m in ("sgd", "joint") for b in (100, 200)),
        "runs, 0 of them finished",
    ]
    assert not list(tmp_path.glob("runs"))


def test_a_sweep_into_a_file_has_a_line_per_run(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    done = forgetless(*SWEEP, cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "1/4  sgd, buffer 100", "2/4  sgd, buffer 200", "3/4  joint, buffer 100", "4/4  joint, buffer 200",
    ]  # fmt: skip
    assert all(re.fullmatch(r".*: [\d.]+ % in [\d.]+ s \(ETA \d.*s\)", line) for line in lines[:-1])
    assert re.fullmatch(r".*: [\d.]+ % in [\d.]+ s", lines[-1])
    listed = forgetless("sweep", "plan.toml", "--dry-run", cwd=tmp_path).stdout
    assert re.search(r"joint, buffer 200 +finished", listed)
    assert listed.endswith("4 runs, 4 of them finished\n")
    again = forgetless("sweep", "plan.toml", "-q", cwd=tmp_path)
    assert again.stderr == ""
    assert [line.split(",")[0] for line in again.stdout.splitlines()[2:]] == [" sgd", " sgd", " joint", " joint"]


def test_force_repeats_a_sweep(records, tmp_path):
    write_plans(tmp_path)
    for seed in (0, 1):
        leave(records[0], tmp_path / "runs", seed, accuracy=1.0)
    (tmp_path / "plan.toml").write_text('stream = "seq-digits"\nmethod = "sgd"\nseeds = 2\n')
    assert "0 done, 2 finished earlier" in forgetless("sweep", "plan.toml", cwd=tmp_path).stdout
    assert "2 done, 0 finished earlier" in forgetless(*SWEEP, "--force", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("sweep plan.toml", "35 of 70"),
        ("search seq-cifar10 sgd --grid grid.toml", "2 of 2"),
        ("reproduce table1 --stream seq-cifar10 --rows er --buffer 500", "5 of 5"),
    ],
)
def test_missing_data_is_one_error_before_any_run(command, count, tmp_path):
    (tmp_path / "plan.toml").write_text('method = "sgd"\nseeds = 35\nstream = ["seq-digits", "seq-cifar10"]\n')
    (tmp_path / "grid.toml").write_text("lr = [0.1, 0.01]\n")
    done = forgetless(*command.split(), cwd=tmp_path, expect=2, FORGETLESS_DATA="nowhere")
    assert done.stderr == (
        f"error: {count} runs cannot start: seq-cifar10 needs the data set cifar10, which is not in nowhere: "
        "run `forgetless data get cifar10`, or set FORGETLESS_DATA to its folder\n"
    )
    assert not list(tmp_path.glob("runs/*"))


def test_a_missing_package_is_one_error_before_any_run(tmp_path):
    (tmp_path / "plan.toml").write_text('stream = "seq-digits"\nmethod = "sgd"\nseeds = 3\n')
    (tmp_path / "start.py").write_text(
        "from forgetless.cli import main\nfrom forgetless.data import requirements\n"
        "requirements.find_spec = lambda name: None\nmain()\n"
    )
    call = [sys.executable, "start.py", "sweep", "plan.toml"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "error: 3 of 3 runs cannot start: seq-digits needs scikit-learn: pip install 'forgetless[digits]'\n"
    )


MINE = """
from forgetless.methods import Method
from forgetless.methods.sgd import SGD
class Mine(Method):
    def step(self, learner, batch):
        return SGD().step(learner, batch)
"""


def test_runs_of_changed_code_are_repeated(tmp_path):
    (tmp_path / "plan.toml").write_text('stream = "seq-digits"\nmethod = ["mine:Mine", "sgd"]\nepochs = 1\nseeds = 2\n')
    (tmp_path / "mine.py").write_text(MINE)
    assert "4 done, 0 finished earlier" in forgetless(*SWEEP, cwd=tmp_path).stdout
    assert "0 done, 4 finished earlier" in forgetless("sweep", "plan.toml", cwd=tmp_path).stdout
    (tmp_path / "mine.py").write_text(f"{MINE}# changed\n")
    listed = forgetless("sweep", "plan.toml", "--dry-run", cwd=tmp_path).stdout
    assert re.search(r"mine:Mine, seed 1 +finished; its code changed since", listed)
    assert listed.endswith("4 runs, 2 of them finished\n")
    done = forgetless(*SWEEP, cwd=tmp_path)
    assert done.stderr.count("warning: mine:Mine changed since the record was made: the run is repeated\n") == 1
    assert "2 done, 2 finished earlier" in done.stdout


def test_equal_failures_are_reported_once(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from forgetless.methods import Method\nclass Broken(Method):\n    def step(self, learner, batch):\n"
        "        raise RuntimeError('it broke')\n"
    )
    (tmp_path / "plan.toml").write_text('stream = "seq-digits"\nmethod = "mine:Broken"\nseeds = 12\n')
    done = forgetless(*SWEEP, cwd=tmp_path, expect=1)
    lines = done.stderr.splitlines()
    assert re.fullmatch(
        r" 1/12  mine:Broken, seed \d: failed: RuntimeError: it broke \(.*mine.py, line 4\) \(ETA .*", lines[0]
    )
    assert [line.split(": ")[1].split(" (")[0] for line in lines[1:12]] == ["failed, like a run before"] * 11
    assert re.fullmatch(r"12 runs failed: RuntimeError: it broke \(.*mine.py, line 4\)", lines[12])
    assert re.fullmatch(r"  mine:Broken, seed \d+ \([0-9a-f]{12}\); .*; … and 2 more", lines[13])
    assert len(lines) == 14
    again = forgetless("sweep", "plan.toml", cwd=tmp_path, expect=1)
    assert "line 4) (in an earlier call; --retry repeats it)\n  mine:Broken, seed 0 (" in again.stderr
    assert len(again.stderr.splitlines()) == 2


TOGETHER = {  # commands that average the records of two seeds
    "sweep": ["plan.toml"],
    "search": ["seq-digits", "sgd", "--grid", "grid.toml", "--seeds", 2],
    "reproduce": ["table1", "--quick", "--rows", "sgd"],
    "report": ["runs", "--table", "table.csv"],
}


@pytest.mark.parametrize("name", TOGETHER)
def test_commands_name_mixed_versions(name, records, tmp_path):
    write_plans(tmp_path)
    leave(records[0], tmp_path / "runs", 0, validation=True)
    for seed in (0, 1):
        leave(records[seed], tmp_path / "runs", seed)
    assert "its records come from" not in forgetless(name, *TOGETHER[name], cwd=tmp_path).stderr
    leave(records[1], tmp_path / "runs", 1, versions={"forgetless": "0.1.0"})
    done = forgetless(name, *TOGETHER[name], cwd=tmp_path)
    assert f"sgd: its records come from the versions 0.1.0, {__version__}\n" in done.stderr


@pytest.mark.parametrize("name", TOGETHER)
def test_a_record_of_other_tasks_is_skipped_and_named(name, records, tmp_path):
    write_plans(tmp_path)
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

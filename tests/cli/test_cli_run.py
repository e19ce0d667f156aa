"""``forgetless run``: what it prints and writes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from calls import QUICK, forgetless

from forgetless.cli.run import _print_record
from forgetless.experiments import record


def test_a_run_prints_a_table_and_writes_a_record(tmp_path):
    done = forgetless("run", "seq-digits", "derpp", "--fpf", "--alpha", "0.3", *QUICK, cwd=tmp_path)
    assert "fpf+derpp" in done.stdout
    assert "given:" in done.stderr
    assert "alpha 0.3" in done.stderr
    (file,) = tmp_path.glob("runs/*/record.json")
    values = json.loads(file.read_text())
    assert values["settings"]["options"] == {"alpha": 0.3}
    assert values["chosen"] == ["fc3"]
    again = forgetless("run", "seq-digits", "derpp", "--fpf", "--alpha=0.3", *QUICK, cwd=tmp_path)
    assert "this run is finished; --force repeats it\n" in again.stderr


def test_without_a_method_the_recommended_recipe_runs(tmp_path):
    done = forgetless("run", "seq-digits", "--json", cwd=tmp_path)
    values = json.loads(done.stdout)
    assert values["settings"]["method"] == "sgd"
    assert values["settings"]["budget"] == 0.8
    assert values["accuracy"] > 84  # 88.3 where it was measured; plain SGD reaches 20
    assert 0.5 < values["flops"]["finetune"] / values["flops"]["train"] < 1.5  # the end has a least number of steps
    shown = forgetless("run", "seq-digits", cwd=tmp_path).stderr
    assert "recommended recipe: lr 0.1, method sgd, repair k-fpf, kd 0.2, groups all, policy distinct" in shown


def test_accuracies_before_the_last_repair_are_marked(tmp_path):
    repaired = forgetless("run", "seq-digits", "sgd", "--fpf", *QUICK, cwd=tmp_path).stderr
    assert len(re.findall(r"after task [1-4]: .* on the tasks so far, before the repair at the end\n", repaired)) == 4
    assert re.search(r"after task 5: .* on the tasks so far\n", repaired)
    assert "before the repair" not in forgetless("run", "seq-digits", "sgd", *QUICK, cwd=tmp_path).stderr


def test_force_repeats_a_finished_run(tmp_path):
    call = ["run", "seq-digits", "sgd", *QUICK]
    forgetless(*call, cwd=tmp_path)
    (file,) = tmp_path.glob("runs/*/record.json")
    before = json.loads(file.read_text())
    file.write_text(json.dumps({**before, "accuracy": 1.0}))
    assert "after task 5" not in forgetless(*call, cwd=tmp_path).stderr
    assert "after task 5" in forgetless(*call, "--force", cwd=tmp_path).stderr
    assert json.loads(file.read_text())["accuracy"] == before["accuracy"]
    assert json.loads(file.with_name("record.old.json").read_text())["accuracy"] == 1.0


def test_a_run_of_changed_code_is_repeated(tmp_path):
    text = (
        "from forgetless.methods import Method\nfrom forgetless.methods.sgd import SGD\n"
        "class Mine(Method):\n    def step(self, learner, batch):\n        return SGD().step(learner, batch)\n"
    )
    (tmp_path / "mine.py").write_text(text)
    call = ["run", "seq-digits", "mine:Mine", *QUICK]
    first = forgetless(*call, "--json", cwd=tmp_path)
    assert "this run is finished; --force repeats it\n" in forgetless(*call, cwd=tmp_path).stderr
    (tmp_path / "mine.py").write_text(f"{text}# changed\n")
    resumed = forgetless("resume", json.loads(first.stdout)["id"], cwd=tmp_path)
    assert "warning: mine:Mine changed since; `forgetless run` repeats the run\n" in resumed.stderr
    again = forgetless(*call, cwd=tmp_path)
    assert "warning: mine:Mine changed since the record was made: the run is repeated\n" in again.stderr
    assert "after task 5" in again.stderr
    (file,) = tmp_path.glob("runs/*/record.json")
    assert json.loads(file.read_text())["code"] != json.loads(first.stdout)["code"]


def test_quiet_prints_only_the_result(tmp_path):
    done = forgetless("run", "seq-digits", "er", "--fpf", "--quiet", *QUICK, cwd=tmp_path)
    assert done.stderr == ""
    heading, row, repair = done.stdout.splitlines()
    assert heading.split() == ["method", "accuracy", "%", "forgetting", "FLOPs", "time", "finetuned"]
    assert re.fullmatch(r" fpf\+er +[\d.]+ +[\d.]+ +[\d.]+ M +[\d.]+ s +[\d.]+% ", row)
    assert re.fullmatch(r"before the last repair: [\d.]+ %; repaired: fc3 \(5\.74% of 17\.6 k parameters\)", repair)
    wrong = forgetless("run", "seq-digits", "er", "-q", "--lr", "-1", cwd=tmp_path, expect=2)
    assert wrong.stderr == "error: lr is -1.0; it must be a finite number above 0\n"


def test_a_last_repair_that_was_undone_is_not_called_one(capsys):
    lines = Path(__file__).parents[2] / "results" / "seq-mnist.jsonl"
    one = next(run for run in record.read_lines(lines) if run.before_finetuning and run.finetunings)
    for kept, said in (
        (True, "repaired: "),
        (False, "it was undone, since it did not clearly lower the held-out loss"),
    ):
        finetunings = [*one.finetunings[:-1], one.finetunings[-1] | {"kept": kept}]
        _print_record(replace(one, finetunings=finetunings), Path("record.json"), as_json=False)
        assert f" %; {said}" in capsys.readouterr().out


def test_an_error_in_user_code_shows_its_place(tmp_path):
    (tmp_path / "mine.py").write_text("def shapes():\n    return {}['images']\n")
    done = forgetless("run", "mine:shapes", "er", cwd=tmp_path, expect=1)
    said = done.stderr.splitlines()
    assert said[0] == "default: network mlp, epochs 1, batch 32, lr 0.1, buffer 500, replay 32"
    assert said[-2] == "error: KeyError: 'images'"
    assert said[-1].endswith("mine.py, line 2, in shapes: return {}['images']")
    assert "Traceback" not in done.stderr


def test_a_value_error_in_user_code_shows_its_place(tmp_path):
    (tmp_path / "mine.py").write_text("def worded():\n    return int('abc')\n")
    said = forgetless("run", "mine:worded", "er", cwd=tmp_path, expect=2).stderr.splitlines()
    assert said[-2] == "error: invalid literal for int() with base 10: 'abc'"
    assert said[-1].endswith("mine.py, line 2, in worded: return int('abc')")


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


def test_a_warning_is_one_line(tmp_path):
    done = forgetless("run", "seq-digits", "er", *QUICK, "--fpf", "--threshold", "99", cwd=tmp_path)
    (line,) = [line for line in done.stderr.splitlines() if "nothing was finetuned" in line]
    assert line.startswith("warning: nothing was finetuned at the end: no S_g is above the threshold 99.0")
    assert "training.py" not in done.stderr


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

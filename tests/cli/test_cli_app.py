"""Help, completion, the version, and the messages of mistakes."""

import os
import re
import subprocess
import sys

import pytest
from calls import forgetless

from forgetless import __version__


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
        (["run", "seq-digits", "--epoch", "3"], "sgd has no setting 'epoch'; did you mean 'epochs'?"),
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


def test_the_version_is_shown(tmp_path):
    assert forgetless("--version", cwd=tmp_path).stdout == f"forgetless {__version__}\n"
    done = subprocess.run([sys.executable, "-m", "forgetless", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"forgetless {__version__}\n"


def test_no_command_shows_the_help(tmp_path):
    done = forgetless(cwd=tmp_path, expect=2)
    assert "Usage: forgetless [OPTIONS] COMMAND" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "words", [[], ["run"], ["sweep"], ["data"], ["data", "get"], ["list"], ["resume"]], ids=" ".join
)
def test_every_command_has_a_short_option_for_help(words, tmp_path):
    short, long = (forgetless(*words, option, cwd=tmp_path).stdout for option in ("-h", "--help"))
    assert short == long
    assert f"Usage: {' '.join(['forgetless', *words])} [OPTIONS]" in short


def panels(help_text):
    """Return the options in each panel of a help text."""
    found = {}
    for line in help_text.splitlines():
        if title := re.match(r"╭─ ([\w ]+) ─", line):
            options = found[title[1]] = []
        elif option := re.match(r"│ +(?:\* +)?(--[\w-]+|\w+) ", line):
            options.append(option[1])
    return found


def test_help_groups_the_options(tmp_path):
    found = panels(forgetless("run", "-h", cwd=tmp_path).stdout)
    assert list(found) == ["Arguments", "Options", "Training", "Buffer", "Repair", "Execution", "Output"]
    assert found["Arguments"] == ["stream", "method"]
    assert found["Buffer"] == ["--replay", "--buffer", "--policy"]
    assert found["Repair"][:4] == ["--fpf", "--k-fpf", "--every", "--steps"]
    assert {"--device", "--force", "--checkpoint-steps"} <= set(found["Execution"])
    assert found["Output"] == ["--out", "--json", "--quiet", "--log"]
    assert list(panels(forgetless("-h", cwd=tmp_path).stdout)) == ["Options", "Train", "Repair", "Look up"]


def test_help_shows_brackets_of_plans(tmp_path):
    assert "expand into a grid, [[runs]] blocks" in forgetless("sweep", "-h", cwd=tmp_path).stdout


@pytest.mark.parametrize("width", [60, 130])
def test_help_fits_the_width_of_the_terminal(width, tmp_path):
    lines = forgetless("run", "-h", cwd=tmp_path, COLUMNS=str(width)).stdout.splitlines()
    assert max(map(len, lines)) == width


def test_help_is_coloured_on_a_terminal(tmp_path):
    assert "\x1b[" not in forgetless("run", "-h", cwd=tmp_path).stdout
    environment = {**os.environ, "FORCE_COLOR": "1"}
    del environment["_TYPER_FORCE_DISABLE_TERMINAL"]
    call = [sys.executable, "-m", "forgetless", "run", "-h"]
    done = subprocess.run(call, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "\x1b[1;36m" in done.stdout  # bold cyan, for the names of the options


def completions(line, cwd):
    """Return what bash would offer after a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = forgetless(cwd=cwd, _FORGETLESS_COMPLETE="complete_bash", **words)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("forgetless run seq-d", ["seq-digits"]),
        ("forgetless run seq-digits der", ["der", "derpp"]),
        ("forgetless run seq-digits er --network resnet", ["resnet18", "resnet18_imagenet"]),
        ("forgetless run seq-digits er --policy ", ["reservoir", "balanced", "distinct"]),
        ("forgetless run seq-digits er --precision f", ["fp32"]),
        ("forgetless sweep plan.toml --on r", ["ray"]),
        ("forgetless search rot", ["rot-mnist"]),
        ("forgetless list vg", ["vgg11"]),
        ("forgetless reproduce table", ["table1"]),
        ("forgetless reproduce table1 --stream seq-pa", ["seq-pathmnist", "seq-pacs"]),
        ("forgetless data get ci", ["cifar10"]),
        ("forgetless res", ["resume"]),
    ],
)
def test_names_are_completed(line, names, tmp_path):
    offered = completions(line, tmp_path)
    assert set(names) <= set(offered)
    assert all(name.startswith(line.split(" ")[-1]) for name in offered)


def test_ids_of_interrupted_runs_are_completed(tmp_path):
    for out, name, file in (
        ("runs", "aa11aa11aa11", "checkpoint.safetensors"),
        ("runs", "aa22aa22aa22", "record.json"),
        ("other", "aa33aa33aa33", "checkpoint.safetensors"),
    ):
        (tmp_path / out / name).mkdir(parents=True)
        (tmp_path / out / name / file).touch()
    assert completions("forgetless resume aa", tmp_path) == ["aa11aa11aa11"]
    assert completions("forgetless resume --out other aa", tmp_path) == ["aa33aa33aa33"]


def test_completion_can_be_shown(tmp_path):
    shown = forgetless("--show-completion", "bash", cwd=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_FORGETLESS_COMPLETE=complete_bash" in shown.stdout


def test_completion_is_installed_for_a_shell(tmp_path):
    environment = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    done = forgetless("--install-completion", "bash", cwd=tmp_path, **environment)
    assert "bash completion installed in " in done.stdout
    assert (
        "complete -o default -F _forgetless_completion forgetless"
        in (tmp_path / ".bash_completions" / "forgetless.sh").read_text()
    )

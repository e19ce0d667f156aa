import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forgetless import NonFiniteError, networks, train
from forgetless.data import benchmarks as streams
from forgetless.experiments import checkpoint, record
from forgetless.experiments import sweep as module
from forgetless.experiments.checkpoint import load
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.run import run
from forgetless.experiments.storage import Schedule
from forgetless.experiments.sweep import (
    Done,
    Failed,
    _by_gpu,
    _gpus,
    _here,
    _Job,
    _packs,
    _sharing,
    _Worker,
    error_path,
    plan,
    read_plan,
    sweep,
)
from forgetless.methods.er import ER
from forgetless.training.events import Stepped
from helpers import LIMIT, lasting, wait_until

QUICK = {"stream": "seq-digits", "epochs": 1, "batch": 50, "replay": 50}


def test_lists_are_a_product_and_blocks_take_what_is_above_them():
    found = plan(
        {
            "stream": "seq-digits",
            "seeds": 2,
            "runs": [
                {"method": ["er", "derpp"], "repair": ["none", "fpf"]},
                {"method": "sgd", "repair": "k-fpf", "every": [50, 100], "seed": 7},
            ],
        }
    )
    labels = [(one.settings.label, one.settings.seed, one.settings.every) for one in found]
    assert labels == [
        *((label, seed, None) for seed in (0, 1) for label in ("er", "fpf+er", "derpp", "fpf+derpp")),
        ("k-fpf-ce", 7, 50),
        ("k-fpf-ce", 7, 100),
    ]


def test_runs_that_share_a_training_go_to_one_process():
    values = {"stream": "seq-digits", "method": ["er", "sgd"], "repair": ["none", "fpf"], "seeds": 2}
    runs = plan({**values, "runs": [{}, {"repair": "fpf", "ft_lr": 0.3}, {"repair": "k-fpf"}]})
    groups = _sharing(runs)
    labels = [sorted((one.settings.label, one.settings.seed, one.settings.ft_lr or 0) for one in own) for own in groups]
    shared = [own for own in labels if len(own) > 1]
    assert shared == [
        sorted([(method, seed, 0), (f"fpf+{method}", seed, 0.1), (f"fpf+{method}", seed, 0.3)])
        for method in ("er", "sgd")
        for seed in (0, 1)
    ]
    assert sum(map(len, groups)) == len(runs) == 16
    assert [len(pack) for pack in _packs(groups, 4)] == [6, 6, 4]
    assert [len(pack) for pack in _packs(groups, 8)] == [9, 7]


def test_a_run_named_twice_is_done_once():
    assert len(plan({"stream": "seq-digits", "method": ["er", "er"], "seed": [0, 0]})) == 1


def test_groups_are_a_value_and_a_list_of_lists_is_a_range():
    one = plan({"stream": "seq-digits", "method": "er", "repair": "fpf", "groups": ["fc2", "fc3"]})
    assert [p.settings.groups for p in one] == [("fc2", "fc3")]
    two = plan({"stream": "seq-digits", "method": "er", "repair": "fpf", "groups": [["fc2", "fc3"], "all"]})
    assert [p.settings.groups for p in two] == [("fc2", "fc3"), "all"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("stream = [", "is not TOML"),
        ('stream = "seq-digits"', "method is missing: every run needs one"),
        ('stream = "seq-digit"\nmethod = "er"', "no stream named 'seq-digit'; did you mean 'seq-digits'"),
        ('stream = "seq-digits"\nmethod = "er"\nseeds = 0', "seeds is 0; it must be a whole number of 1 or more"),
        ('stream = "seq-digits"\nmethod = "er"\nlr = []', "lr is an empty list; it must have one value or more"),
        ('stream = "seq-digits"\nmethod = "er"\nruns = 3', "runs must be blocks, each headed"),
        ("runs = []", "runs is an empty list, so the plan has no run; leave it out, or head blocks"),
        ('stream = "seq-digits"\nmethod = "er"\nruns = []', "runs is an empty list, so the plan has no run"),
        ('[[run]]\nstream = "seq-digits"\nmethod = "er"', "run is a block, but blocks of runs are headed"),
        ('stream = "seq-digits"\nmethod = "er"\nepoch = 3', "er has no setting 'epoch'; did you mean 'epochs'"),
        ('stream = "seq-digits"\nmethod = "er"\nkd = 0.5', "kd is a setting of FPF"),
        ('stream = "seq-digits"\nmethod = "er"\nlr = [0.1, nan]', "lr is nan; it must be a finite number above 0"),
        ('stream = "seq-digits"\nmethod = "er"\nepochs = 0', "epochs is 0; it must be a whole number of 1 or more"),
        ('stream = "seq-digits"\nmethod = "er"\nbuffer = -5', "buffer is -5; it must be a whole number of 0 or more"),
        ('stream = "seq-digits"\nmethod = "er"\ndevice = "gpu"', "device is 'gpu'; it must be cpu, cuda"),
        ('stream = "seq-digits"\nmethod = "er"\nvalidation = "no"', "validation is 'no'; it must be true or false"),
        (
            'stream = "seq-digits"\nmethod = "er"\nseeds = 2\nseed = [7]',
            r"seeds is 2 and seed is \[7\]; give one of them",
        ),
    ],
)
def test_a_bad_plan_is_refused_with_the_files_name(text, match, tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=match) as error:
        read_plan(file)
    assert "plan.toml" in str(error.value)


def test_a_plan_that_is_not_there():
    with pytest.raises(ValueError, match="there is no file"):
        read_plan(Path("nowhere.toml"))


def test_a_folder_is_no_plan(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} is a folder; it must be a TOML file"):
        read_plan(tmp_path)


def test_what_has_a_record_is_not_done_again_what_fails_is_written_down_and_the_rest_is_as_alone(tmp_path):
    runs = plan(QUICK | {"method": "er", "seeds": 2}) + plan(QUICK | {"method": "er", "lr": 1e20})
    notes = {note.settings.id: note for note in sweep(runs, tmp_path, workers=2)}
    good, bad = runs[:2], runs[2]
    for one in good:
        assert notes[one.settings.id] == Done(one.settings, again=False)
        made, alone = (
            record.read(record.path(tmp_path, one.settings)).to_dict(),
            run(one.settings, one.sources).to_dict(),
        )
        for values in (made, alone):
            del values["seconds"]
        assert made == alone
    failure = notes[bad.settings.id]
    assert isinstance(failure, Failed)
    assert "NonFiniteError: the loss became" in failure.error
    written = json.loads(error_path(tmp_path, bad.settings).read_text())
    assert written["settings"]["lr"] == 1e20
    assert "Traceback" in written["trace"]
    again = list(sweep(runs, tmp_path, workers=2))
    assert all(note.again for note in again)
    assert [type(note) for note in again] == [Done, Done, Failed]


def test_bad_numbers_of_workers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="workers is 0; it must be a whole number of 1 or more"):
        list(sweep([], tmp_path, workers=0))


def test_a_killed_worker_is_told_and_the_others_go_on(tmp_path):
    """Its method ends its own process, as the kernel does with one that has no memory left."""
    module = tmp_path / "deadly.py"
    module.write_text(
        "import os, signal\n"
        "from forgetless.methods.er import ER\n"
        "class Deadly(ER):\n"
        "    def step(self, learner, batch):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code = (
        "import sys\nfrom pathlib import Path\nfrom forgetless.experiments.sweep import read_plan, sweep\n"
        "if __name__ == '__main__':\n"
        "    for note in sweep(read_plan(Path(sys.argv[1])), Path(sys.argv[2]), workers=1):\n"
        "        print(type(note).__name__, getattr(note, 'error', ''))\n"
    )
    (tmp_path / "main.py").write_text(code)
    shared = [f"{name} = {json.dumps(value)}" for name, value in QUICK.items()]
    blocks = ["[[runs]]", 'method = "deadly:Deadly"', "[[runs]]", 'method = "er"', "seeds = 2"]
    (tmp_path / "plan.toml").write_text("\n".join([*shared, *blocks]))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, tmp_path / "main.py", tmp_path / "plan.toml", tmp_path / "out"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:2] == ["Started ", "Failed its process ended with exit code -9"]
    assert [line.split()[0] for line in lines[2:]] == ["Started", "Done"] * 2


def test_killed_at_five_random_moments_and_started_again_it_ends_with_the_same_records(tmp_path):
    lines = [f"{name} = {json.dumps(value)}" for name, value in QUICK.items()]
    (tmp_path / "plan.toml").write_text("\n".join([*lines, 'method = ["er", "sgd", "derpp"]', "seeds = 4"]))
    code = "from forgetless.cli.app import main; main()"
    call = [
        sys.executable,
        "-c",
        code,
        "sweep",
        "plan.toml",
        "--out",
        "out",
        "--workers",
        "2",
        "--checkpoint-steps",
        "10",
    ]
    moments = random.Random()
    for _ in range(5):
        process = subprocess.Popen(
            call, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(moments.uniform(1.5, 5.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    ended = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 failed" in ended.stdout
    for one in read_plan(tmp_path / "plan.toml"):
        made = record.read(record.path(tmp_path / "out", one.settings))
        assert lasting(made) == lasting(run(one.settings, one.sources))
    again = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 done, 12 already there, 0 failed" in again.stdout


def test_runs_on_cuda_are_dealt_out_to_all_gpus_and_those_on_a_named_one_stay():
    runs = plan(QUICK | {"method": "er", "device": ["cuda", "cuda:1"], "seeds": 3})
    dealt = _by_gpu(runs, ["0", "3"])
    assert [(job.gpu, [one.settings.seed for one in job.runs]) for job in dealt] == [
        ("0", [0, 2]), ("3", [1]), (None, [0, 1, 2]),
    ]  # fmt: skip
    assert {one.settings.device for one in dealt[2].runs} == {"cuda:1"}
    assert [len(job.runs) for job in _by_gpu(runs, ["0"])] == [3, 3]
    assert _by_gpu(plan(QUICK | {"method": "er"}), ["0", "1"]) == []


def test_gpus_are_those_the_environment_names(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert _gpus() == ["2", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _gpus() == []


def test_a_place_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="on is 'slurm'; it must be one of here, ray"):
        list(sweep([], tmp_path, on="slurm"))


def test_two_sweeps_on_one_folder_at_once_do_no_harm(tmp_path):
    lines = [f"{name} = {json.dumps(value)}" for name, value in QUICK.items()]
    (tmp_path / "plan.toml").write_text("\n".join([*lines, 'method = ["er", "sgd"]', "lr = [0.1, 1e20]", "seeds = 2"]))
    code = "from forgetless.cli.app import main; main()"
    call = [sys.executable, "-c", code, "sweep", "plan.toml", "--workers", "1"]
    both = [subprocess.Popen(call, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        output, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 1, errors  # half of the runs diverge
        assert b"4 failed" in output
        assert b"Traceback" not in errors
    for one in read_plan(tmp_path / "plan.toml"):
        if one.settings.lr == 0.1:
            made = record.read(record.path(tmp_path / "runs", one.settings))
            assert lasting(made) == lasting(run(one.settings, one.sources))
    assert not list(tmp_path.rglob("*.partial"))


def test_a_record_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path):
    runs = plan(QUICK | {"method": "er", "seeds": 2})
    torn = record.path(tmp_path, runs[0].settings)
    torn.parent.mkdir()
    torn.write_text('{"id": ')
    notes = {note.settings.id: note for note in sweep(runs, tmp_path, workers=1)}
    failure = notes[runs[0].settings.id]
    assert isinstance(failure, Failed)
    assert re.search(r"record.json is not a record: .*; remove it to do the run again", failure.error)
    assert notes[runs[1].settings.id] == Done(runs[1].settings, again=False)
    assert torn.read_text() == '{"id": '


def test_a_full_disk_is_an_error_of_the_run_that_says_so(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (one,) = plan(QUICK | {"method": "er"})
    monkeypatch.setattr(os, "fsync", full)
    ((_, made),) = run_lanes([one.settings], 1, tmp_path)
    assert "No space left on device" in str(made.error)
    assert not list(tmp_path.rglob("*.*"))
    monkeypatch.undo()
    ((_, made),) = run_lanes([one.settings], 1, tmp_path)
    assert record.read(record.path(tmp_path, one.settings)) == made


@pytest.mark.parametrize("asked", ["by the scheduler", "with Ctrl-C"])
def test_a_sweep_that_is_asked_to_stop_leaves_checkpoints_from_which_it_goes_on(asked, tmp_path):
    text = 'stream = "seq-digits"\nmethod = "derpp"\nepochs = 12\nrepair = ["none", "k-fpf"]\n'
    (tmp_path / "plan.toml").write_text(text)
    code = "from forgetless.cli.app import main; main()"
    call = [sys.executable, "-c", code, "sweep", "plan.toml", "--workers", "2"]
    process = subprocess.Popen(
        [*call, "--checkpoint-steps", "10"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    wait_until(lambda: len(list(tmp_path.glob("runs/*/checkpoint.safetensors"))) == 2, of=process)
    if asked == "with Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)  # reaches the processes of the sweep too
    else:
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert b"interrupted; the same command goes on" in errors
    assert list(tmp_path.glob("runs/*/checkpoint.safetensors"))
    assert not list(tmp_path.glob("runs/*/error.json"))
    ended = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 failed" in ended.stdout
    assert not list(tmp_path.glob("runs/*/checkpoint.safetensors"))
    for one in read_plan(tmp_path / "plan.toml"):
        made = record.read(record.path(tmp_path / "runs", one.settings))
        assert lasting(made) == lasting(run(one.settings, one.sources))


def test_weights_that_are_not_finite_are_never_kept(tmp_path):
    (one,) = plan({"stream": "seq-digits", "method": "sgd", "lr": 1e20})
    with pytest.raises(NonFiniteError, match=r"the loss became nan at step \d, in epoch 1 of task 1; try a smaller lr"):
        run(one.settings, out=tmp_path, schedule=Schedule(steps=10, seconds=None))
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_step_that_is_told_is_the_first_that_is_not_finite():
    stream, method = streams.seq_digits(), ER()
    losses = []

    def step(learner, batch, original=method.step):
        loss, columns = original(learner, batch)
        losses.append(len(losses) + 1)
        return (loss * float("nan") if len(losses) == 37 else loss), columns

    method.step = step
    with pytest.raises(
        NonFiniteError, match="the loss became nan at step 37, in epoch 2 of task 1; try a smaller lr than"
    ):
        list(train(stream, method, networks.mlp(10, inputs=64), epochs=3, batch=10, lr=0.01, buffer=100, capture=False))


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of three megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3M", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # a state that was read may still be mapped


def test_a_run_on_a_disk_that_fills_up_goes_on_without_checkpoints(small_disk):
    (one,) = plan({"stream": "seq-digits", "method": "er", "epochs": 3})
    ballast = small_disk / "ballast"
    room = 50_000  # for a record, not for a checkpoint

    def fill(event):
        if isinstance(event, Stepped) and event.step == 200:
            ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - room))

    schedule = Schedule(steps=20, seconds=None)
    with pytest.warns(
        UserWarning, match=r"no checkpoint was written: .* could not be written: No space left on device"
    ):
        made = run(one.settings, one.sources, small_disk, fill, schedule=schedule)
    alone = run(one.settings, one.sources)
    assert lasting(made) == lasting(alone)
    shutil.rmtree(small_disk / one.settings.id)
    ballast.unlink()
    room = 1000  # for nothing
    with (
        pytest.warns(UserWarning, match="no checkpoint"),
        pytest.raises(OSError, match="record.json could not be written: No space left"),
    ):
        run(one.settings, one.sources, small_disk, fill, schedule=schedule)
    state, _ = load(checkpoint.path(small_disk, one.settings))
    assert 150 < state["place"][0] <= 200
    ballast.unlink()
    steps = []
    made = run(one.settings, one.sources, small_disk, lambda event: steps.append(getattr(event, "step", 10**9)))
    assert min(steps) > 150
    assert lasting(made) == lasting(alone)


def test_what_a_dead_process_had_not_begun_is_done_by_another(tmp_path, monkeypatch):
    """On a GPU one process has all runs; here that is played with runs on the CPU."""
    (tmp_path / "fatal.py").write_text(
        "import os\n"
        "from forgetless.methods.er import ER\n"
        "class Fatal(ER):\n"
        "    def end_task(self, learner, task, number):\n"
        "        os._exit(7)\n"
    )
    monkeypatch.chdir(tmp_path)
    runs = plan(QUICK | {"method": ["fatal:Fatal", "er", "sgd"]})
    monkeypatch.setattr("forgetless.experiments.sweep._by_gpu", lambda runs, gpus: [_Job(list(runs))])
    monkeypatch.setattr("forgetless.experiments.sweep._gpus", list)
    notes = {note.settings.method: note for note in _here([runs[0], *runs[1:]], tmp_path, 1, 1, Schedule(None, None))}
    assert "exit code 7" in notes["fatal:Fatal"].error
    assert isinstance(notes["er"], Done)
    assert isinstance(notes["sgd"], Done)
    assert not error_path(tmp_path, runs[0].settings).exists()  # it is done by the next sweep, from its checkpoint


def test_a_worker_that_has_died_is_dismissed_without_an_error(tmp_path):
    worker = _Worker(tmp_path, None, _Job(plan(QUICK | {"method": "er"})), Schedule(None, None))
    worker.process.kill()
    worker.process.join()
    worker.dismiss()


def test_jobs_on_the_cpu_wait_for_none_on_a_gpu_and_are_no_more_at_once_than_workers(tmp_path, monkeypatch):
    """Make-believe processes: each ends one run whenever it is looked at, those on the GPU when all others have."""
    crew, most = [], []

    class Process:
        def join(self, timeout=None):
            pass

        terminate = kill = join

    class Worker:
        def __init__(self, out, lanes, first, schedule):
            self.connection, self.gpu, self.on_gpu, self.process, self.begun = (
                self,
                first.gpu,
                first.on_gpu,
                Process(),
                set(),
            )
            crew.append(self)

        def give(self, job):
            self.has = {one.settings.id: one for one in job.runs}

        def recv(self):
            most.append(sum(not one.on_gpu for one in crew))
            return next(iter(self.has)), False, None

        def dismiss(self):
            crew.remove(self)

    monkeypatch.setattr(module, "_Worker", Worker)
    monkeypatch.setattr(module, "Connection", Worker)
    monkeypatch.setattr(module, "_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(module, "wait", lambda ready: [min(ready, key=lambda one: one.on_gpu)])
    runs = plan(QUICK | {"method": "er", "device": ["cuda", "cpu"], "seeds": 4, "precision": "fp32"})
    ended = [note.settings.device for note in _here(runs, tmp_path, 2, None, Schedule(None, None))]
    assert ended == ["cpu"] * 4 + ["cuda"] * 4
    assert max(most) == 2


def test_an_error_of_a_file_is_not_written_down(tmp_path, monkeypatch):
    """With the data there, the next call does the run."""
    monkeypatch.setenv("FORGETLESS_DATA", str(tmp_path / "nowhere"))
    runs = plan({"stream": "seq-mnist", "method": "sgd"})
    (failure,) = (note for note in sweep(runs, tmp_path / "runs", workers=1) if isinstance(note, Failed))
    assert "DataError" in failure.error
    assert failure.lost
    assert not error_path(tmp_path / "runs", runs[0].settings).exists()


def test_an_error_that_cannot_be_written_down_stops_no_other_run(tmp_path, monkeypatch):
    def full(values, file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record, "write_json", full)
    runs = plan(QUICK | {"method": "er", "lr": [1e20, 0.1]})
    notes = {note.settings.lr: note for note in sweep(runs, tmp_path, workers=1)}
    assert "NonFiniteError" in notes[1e20].error
    assert "error.json be written: [Errno 28]" in notes[1e20].error
    assert isinstance(notes[0.1], Done)


def test_auto_and_all_in_a_list_are_a_range_of_groups():
    found = plan(QUICK | {"method": "er", "repair": "fpf", "groups": ["auto", "all", ["fc2", "fc3"]]})
    assert [one.settings.groups for one in found] == ["auto", "all", ("fc2", "fc3")]


def test_processes_do_not_outlive_a_sweep_that_was_killed(tmp_path):
    (tmp_path / "patient.py").write_text(
        "import os\nfrom pathlib import Path\nfrom forgetless.methods.er import ER\n"
        "class Patient(ER):\n"
        "    def end_task(self, learner, task, number):\n"
        "        Path(__file__).with_name('number').write_text(str(os.getpid()))\n"
    )
    (tmp_path / "plan.toml").write_text('stream = "seq-digits"\nmethod = "patient:Patient"\nepochs = 150\n')
    code = "from forgetless.cli.app import main; main()"
    call = [sys.executable, "-c", code, "sweep", "plan.toml", "--workers", "1", "--checkpoint-seconds", "600"]
    sweeping = subprocess.Popen(call, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    number = tmp_path / "number"
    wait_until(lambda: number.exists() and number.read_text() != "", of=sweeping)
    stat = Path("/proc") / number.read_text() / "stat"
    sweeping.kill()
    sweeping.wait()
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")
    (left,) = tmp_path.rglob("checkpoint.safetensors")
    load(left)  # whole

"""Local processes: who executes which run, and what happens when one dies or the sweep is stopped."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forgetless.experiments import record, workers
from forgetless.experiments.checkpoint import load
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import RunDone
from forgetless.experiments.plan import expand_plan, read_plan
from forgetless.experiments.run import run as run_settings
from forgetless.experiments.sweep import error_path, sweep
from helpers import LIMIT, command, lasting, wait_until

QUICK = {"stream": "seq-digits", "epochs": 1, "batch": 50, "replay": 50}
QUICK_TOML = 'stream = "seq-digits"\nepochs = 1\nbatch = 50\nreplay = 50\n'
SWEEP = [sys.executable, "-c", "from forgetless.cli import main; main()", "sweep", "plan.toml"]


ALONE = {}  # the runs that were trained in this process


def is_as_alone(run, out):
    """Compare the record of a run with that of the same run in this process."""
    key = (run.settings.id, str(run.sources))
    ALONE[key] = ALONE.get(key) or lasting(run_settings(run.settings, run.sources))
    return lasting(record.read(record.path(out, run.settings))) == ALONE[key]


def test_cuda_runs_are_distributed_and_named_devices_stay():
    runs = expand_plan(QUICK | {"method": "er", "device": ["cuda", "cuda:1"], "seeds": 3})
    jobs = workers.assign_gpus(runs, ["0", "3"])
    assert [(job.gpu, [run.settings.seed for run in job.runs]) for job in jobs] == [
        ("0", [0, 2]), ("3", [1]), (None, [0, 1, 2]),
    ]  # fmt: skip
    assert {run.settings.device for run in jobs[2].runs} == {"cuda:1"}
    assert [len(job.runs) for job in workers.assign_gpus(runs, ["0"])] == [3, 3]
    assert workers.assign_gpus(expand_plan(QUICK | {"method": "er"}), ["0", "1"]) == []


@pytest.mark.parametrize(("visible", "gpus"), [("2,5", ["2", "5"]), ("", [])])
def test_the_environment_decides_which_gpus_are_visible(visible, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert workers.visible_gpus() == gpus


def test_a_dead_process_loses_only_its_started_run(tmp_path, monkeypatch):
    """On a GPU one process has all runs; here runs on the CPU stand for them."""
    (tmp_path / "fatal.py").write_text(
        "import os, signal\n"
        "from forgetless.methods.er import ER\n"
        "class Fatal(ER):\n"
        "    def end_task(self, learner, task, number):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    runs = expand_plan(QUICK | {"method": ["fatal:Fatal", "er", "sgd"]})
    monkeypatch.setattr(workers, "assign_gpus", lambda runs, gpus: [workers.Job(list(runs))])
    monkeypatch.setattr(workers, "group_by_training", lambda runs: [])
    events = {event.settings.method: event for event in sweep(runs, tmp_path, Execution(workers=1))}
    assert events["fatal:Fatal"].error == "its process ended with exit code -9"
    assert events["fatal:Fatal"].lost
    assert isinstance(events["er"], RunDone)
    assert isinstance(events["sgd"], RunDone)
    assert not error_path(tmp_path, runs[0].settings).exists()  # the next sweep repeats it


def test_a_dead_worker_can_be_dismissed(tmp_path):
    worker = workers._Worker(tmp_path, Execution(), workers.Job(expand_plan(QUICK | {"method": "er"})))
    worker.process.kill()
    worker.process.join()
    worker.dismiss()


def test_cpu_jobs_do_not_wait_for_gpu_jobs(tmp_path, monkeypatch):
    """Fake processes: each ends one run whenever it is asked, those on the GPU after all others."""
    pool, busy = [], []

    class Process:
        def join(self, timeout=None):
            pass

        terminate = kill = join

    class Worker:
        alive = True

        def __init__(self, out, execution, first):
            self.connection, self.process = self, Process()
            self.assign(first)
            pool.append(self)

        def assign(self, job):
            self.job, self.runs = job, {run.settings.id: run for run in job.runs}

        def receive(self):
            busy.append(sum(not worker.job.on_gpu for worker in pool))
            yield RunDone(self.runs.popitem()[1].settings)

        def dismiss(self):
            pool.remove(self)

    monkeypatch.setattr(workers, "_Worker", Worker)
    monkeypatch.setattr(workers, "visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(workers, "wait", lambda ready: [min(ready, key=lambda worker: worker.job.on_gpu)])
    runs = expand_plan(QUICK | {"method": "er", "device": ["cuda", "cpu"], "seeds": 4, "precision": "fp32"})
    ended = [event.settings.device for event in workers.execute(runs, tmp_path, Execution(workers=2))]
    assert ended == ["cpu"] * 4 + ["cuda"] * 4
    assert max(busy) == 2


def test_a_killed_sweep_ends_with_the_same_records(tmp_path):
    (tmp_path / "plan.toml").write_text(QUICK_TOML + 'method = ["er", "derpp"]\nseeds = 3\n')
    call = [*SWEEP, "--workers", "2", "--checkpoint-steps", "10"]

    def files():
        return sorted((file, file.stat().st_mtime_ns) for file in tmp_path.glob("runs/*/*") if file.exists())

    for _ in range(2):
        before = files()
        process = subprocess.Popen(
            call, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        wait_until(lambda before=before: files() != before, of=process)
        time.sleep(random.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "0 failed" in command(*call[3:], cwd=tmp_path).stdout
    assert all(is_as_alone(run, tmp_path / "runs") for run in read_plan(tmp_path / "plan.toml"))
    assert "0 done, 6 finished earlier, 0 failed" in command(*call[3:], cwd=tmp_path).stdout


@pytest.mark.parametrize("asked", ["by the scheduler", "with Ctrl-C"])
def test_a_stopped_sweep_resumes_from_its_checkpoints(asked, tmp_path):
    (tmp_path / "plan.toml").write_text('stream = "seq-digits"\nmethod = "derpp"\nepochs = 4\nseeds = 2\n')
    process = subprocess.Popen(
        [*SWEEP, "--workers", "2", "--checkpoint-steps", "10"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    wait_until(lambda: list(tmp_path.glob("runs/*/checkpoint.safetensors")), of=process)
    if asked == "with Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)  # also reaches the processes of the sweep
    else:
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert b"interrupted; the same command resumes" in errors
    assert list(tmp_path.glob("runs/*/checkpoint.safetensors"))
    assert not list(tmp_path.glob("runs/*/error.json"))
    assert "0 failed" in command(*SWEEP[3:], "--workers", "1", cwd=tmp_path).stdout
    assert not list(tmp_path.glob("runs/*/checkpoint.safetensors"))
    assert all(is_as_alone(run, tmp_path / "runs") for run in read_plan(tmp_path / "plan.toml"))


def test_processes_end_when_their_sweep_is_killed(tmp_path):
    (tmp_path / "patient.py").write_text(
        "import os\nfrom pathlib import Path\nfrom forgetless.methods.er import ER\n"
        "class Patient(ER):\n"
        "    def end_task(self, learner, task, number):\n"
        "        Path(__file__).with_name('process').write_text(str(os.getpid()))\n"
    )
    (tmp_path / "plan.toml").write_text('stream = "seq-digits"\nmethod = "patient:Patient"\nepochs = 150\n')
    call = [*SWEEP, "--workers", "1", "--checkpoint-seconds", "600"]
    parent = subprocess.Popen(call, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process = tmp_path / "process"
    wait_until(lambda: process.exists() and process.read_text() != "", of=parent)
    stat = Path("/proc") / process.read_text() / "stat"
    parent.kill()
    parent.wait()
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    load(checkpoint)


def test_two_sweeps_can_share_a_folder(tmp_path):
    (tmp_path / "plan.toml").write_text(QUICK_TOML + 'method = ["er", "sgd"]\nlr = [0.1, 1e20]\n')
    call = [*SWEEP, "--workers", "1"]
    both = [subprocess.Popen(call, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        output, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 1, errors  # half of the runs diverge
        assert b"2 failed" in output
        assert b"Traceback" not in errors
    assert all(is_as_alone(run, tmp_path / "runs") for run in read_plan(tmp_path / "plan.toml") if run.settings.lr < 1)
    assert not list(tmp_path.rglob("*.partial"))

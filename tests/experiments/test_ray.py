import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from forgetless.experiments import ray as cluster
from forgetless.experiments import record
from forgetless.experiments.run import run
from forgetless.experiments.sweep import Failed, Started, plan, sweep
from helpers import LIMIT, lasting, wait_until

QUICK = {"stream": "seq-digits", "epochs": 3, "batch": 50, "replay": 50}
SWEEP = [sys.executable, "-c", "from forgetless.cli.app import main; main()", "sweep"]


@pytest.fixture(scope="module")
def nodes():
    """A real cluster on the loopback interface: a head and a second node, each a raylet with one core."""
    utils = pytest.importorskip("ray.cluster_utils", reason="needs forgetless[ray]")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    common = {"num_cpus": 1, "object_store_memory": 80_000_000}
    made = utils.Cluster(
        initialize_head=True, head_node_args={**common, "node_ip_address": "127.0.0.2", "include_dashboard": False}
    )
    second = made.add_node(**common, node_ip_address="127.0.0.3")
    yield made, second
    made.shutdown()


@pytest.mark.filterwarnings("default")
def test_a_sweep_survives_the_death_of_a_node_and_its_records_are_those_of_local_runs(nodes, tmp_path):
    made, second = nodes
    lines = [f"{name} = {json.dumps(value)}" for name, value in QUICK.items()]
    (tmp_path / "plan.toml").write_text("\n".join([*lines, 'method = ["er", "derpp"]', "seeds = 10"]))
    environment = {**os.environ, "RAY_ADDRESS": made.address}
    call = [*SWEEP, "plan.toml", "--on", "ray"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(call, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        wait_until(lambda: len(list(tmp_path.glob("runs/*/record.json"))) >= 8, of=process)
        assert process.poll() is None, (tmp_path / "log").read_text()
        made.remove_node(second, allow_graceful=False)
        assert process.wait(LIMIT) == 0, (tmp_path / "log").read_text()
    assert "20 done, 0 already there, 0 failed" in (tmp_path / "log").read_text()
    for method in ("er", "derpp"):
        for one in plan({**QUICK, "method": method, "seeds": 10}):
            found = record.read(record.path(tmp_path / "runs", one.settings))
            assert lasting(found) == lasting(run(one.settings, one.sources))
    again = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "0 done, 20 already there, 0 failed" in again.stdout


@pytest.mark.filterwarnings("default")
def test_failures_come_back_and_records_too_where_no_folder_is_shared(nodes, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", nodes[0].address)
    runs = plan({**QUICK, "method": "er"}) + plan({**QUICK, "method": "er", "lr": 1e20})
    try:
        notes = {note.settings.id: note for note in sweep(runs, record.folder("memory://a-sweep"), on="ray")}
        here = record.read(record.path(record.folder("memory://a-sweep"), runs[0].settings))
        assert lasting(here) == lasting(run(runs[0].settings, runs[0].sources))
        failure = notes[runs[1].settings.id]
        assert isinstance(failure, Failed)
        assert "NonFiniteError: the loss became" in failure.error
        with pytest.raises(ValueError, match="the Ray cluster has no GPU, which the runs need"):
            list(sweep(plan({**QUICK, "method": "er", "device": "cuda"}), tmp_path, on="ray"))
    finally:
        ray.shutdown()


def test_a_named_gpu_is_refused_on_ray(tmp_path):
    with pytest.raises(ValueError, match="device is 'cuda:1'; on Ray it must be cpu or cuda"):
        list(sweep(plan({**QUICK, "method": "er", "device": "cuda:1"}), tmp_path, on="ray"))


@pytest.mark.filterwarnings("default")
def test_no_cluster_is_an_error_that_says_what_to_do(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.9:1")
    with pytest.raises(ValueError, match="RAY_ADDRESS is '127.0.0.9:1', where no Ray cluster answers .*: start one"):
        cluster._connect()

    def init(**arguments):
        raise ConnectionError("none running")

    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ValueError, match="no Ray cluster was found: start one with `ray start --head`"):
        cluster._connect()


class Ray:
    """One GPU and two cores; tasks end in the order in which they were handed out, and give nothing."""

    exceptions = SimpleNamespace(RayError=RuntimeError, RayTaskError=RecursionError)

    def remote(self, **settings):
        return lambda function: self

    def options(self, **need):
        return type("Task", (), {"remote": staticmethod(lambda *given: object())})

    def cluster_resources(self):
        return {"GPU": 1, "CPU": 2}

    def wait(self, tasks, num_returns):
        return tasks[:1], tasks[1:]

    def get(self, task):
        return []

    def cancel(self, task, force):
        raise AssertionError


def test_a_run_whose_node_died_for_good_is_tried_by_the_next_sweep(monkeypatch, tmp_path):
    class Dying(Ray):
        def get(self, task):
            raise RuntimeError("the node is gone")

    monkeypatch.setattr(cluster, "_connect", Dying)
    for _ in range(2):
        started, failed = sweep(plan({**QUICK, "method": "er"}), tmp_path, on="ray")
        assert isinstance(started, Started)
        assert failed == Failed(started.settings, "RuntimeError: the node is gone", again=False, lost=True)


def test_a_task_that_fails_itself_is_written_down(monkeypatch, tmp_path):
    class Failing(Ray):
        def get(self, task):
            raise RecursionError("no such module")

    monkeypatch.setattr(cluster, "_connect", Failing)
    runs = plan({**QUICK, "method": "er"})
    assert [type(note) for note in sweep(runs, tmp_path, on="ray")] == [Started, Failed]
    (again,) = sweep(runs, tmp_path, on="ray")
    assert again == Failed(runs[0].settings, "RecursionError: no such module", again=True)


def test_jobs_for_cores_do_not_wait_for_those_for_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "_connect", Ray)
    jobs = [cluster.Job([], gpu=gpu) for gpu in (True, True, True, False, False, False)]
    told = list(cluster.share_out(jobs, str(tmp_path), 8, (None, None)))
    assert told[:3] == [(0, None), (3, None), (4, None)]  # at once
    assert [number for number, outcomes in told if outcomes is not None] == [0, 3, 4, 1, 5, 2]

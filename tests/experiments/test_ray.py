import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from forgetless.experiments import ray as cluster
from forgetless.experiments import record
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import RunFailed, RunStarted
from forgetless.experiments.plan import expand_plan
from forgetless.experiments.run import run as run_settings
from forgetless.experiments.sweep import sweep
from helpers import LIMIT, lasting, wait_until

QUICK = {"stream": "seq-digits", "epochs": 3, "batch": 50, "replay": 50}
ON_RAY = Execution(on="ray")
SWEEP = [sys.executable, "-c", "from forgetless.cli import main; main()", "sweep"]


@pytest.fixture(scope="module")
def nodes():
    """Start a real cluster on the loopback interface: a head and a second node with one core each."""
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
def test_a_sweep_survives_the_death_of_a_node(nodes, tmp_path):
    made, second = nodes
    (tmp_path / "plan.toml").write_text(
        'stream = "seq-digits"\nepochs = 3\nbatch = 50\nreplay = 50\nmethod = ["er", "derpp"]\nseeds = 4\n'
    )
    environment = {**os.environ, "RAY_ADDRESS": made.address}
    call = [*SWEEP, "plan.toml", "--on", "ray"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(call, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        wait_until(lambda: len(list(tmp_path.glob("runs/*/record.json"))) >= 3, of=process)
        assert process.poll() is None, (tmp_path / "log").read_text()
        made.remove_node(second, allow_graceful=False)
        assert process.wait(LIMIT) == 0, (tmp_path / "log").read_text()
    assert "8 done, 0 finished earlier, 0 failed" in (tmp_path / "log").read_text()
    for run in expand_plan({**QUICK, "method": ["er", "derpp"], "seeds": 4}):
        written = record.read(record.path(tmp_path / "runs", run.settings))
        assert lasting(written) == lasting(run_settings(run.settings, run.sources))
    again = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "0 done, 8 finished earlier, 0 failed" in again.stdout


@pytest.mark.filterwarnings("default")
def test_records_and_failures_return_without_a_shared_folder(nodes, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", nodes[0].address)
    runs = expand_plan({**QUICK, "method": "er", "lr": [0.1, 1e20]})
    out = record.folder("memory://a-sweep")
    try:
        events = {event.settings.id: event for event in sweep(runs, out, ON_RAY)}
        written = record.read(record.path(out, runs[0].settings))
        assert lasting(written) == lasting(run_settings(runs[0].settings, runs[0].sources))
        failed = events[runs[1].settings.id]
        assert isinstance(failed, RunFailed)
        assert "NonFiniteError: the loss became" in failed.error
        with pytest.raises(ValueError, match="the Ray cluster has no GPU, which the runs need"):
            list(sweep(expand_plan({**QUICK, "method": "er", "device": "cuda"}), tmp_path, ON_RAY))
    finally:
        ray.shutdown()


def test_a_named_gpu_is_refused_on_ray(tmp_path):
    with pytest.raises(ValueError, match="device is 'cuda:1'; on Ray it must be cpu or cuda"):
        list(sweep(expand_plan({**QUICK, "method": "er", "device": "cuda:1"}), tmp_path, ON_RAY))


@pytest.mark.filterwarnings("default")
def test_a_missing_cluster_is_an_error_with_a_hint(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.9:1")
    with pytest.raises(ValueError, match="RAY_ADDRESS is '127.0.0.9:1', where no Ray cluster answers .*: start one"):
        cluster._connect()

    def init(**arguments):
        raise ConnectionError("none running")

    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ValueError, match="there is no Ray cluster: start one with `ray start --head`"):
        cluster._connect()


class Ray:
    """One GPU and two cores; tasks end in the order in which they were submitted, and return nothing."""

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


def test_the_next_sweep_repeats_runs_of_dead_nodes(monkeypatch, tmp_path):
    class Dying(Ray):
        def get(self, task):
            raise RuntimeError("the node is gone")

    monkeypatch.setattr(cluster, "_connect", Dying)
    for _ in range(2):
        started, failed = sweep(expand_plan({**QUICK, "method": "er"}), tmp_path, ON_RAY)
        assert isinstance(started, RunStarted)
        assert failed == RunFailed(started.settings, "RuntimeError: the node is gone", earlier=False, lost=True)


def test_a_task_that_fails_itself_is_recorded(monkeypatch, tmp_path):
    class Failing(Ray):
        def get(self, task):
            raise RecursionError("no such module")

    monkeypatch.setattr(cluster, "_connect", Failing)
    runs = expand_plan({**QUICK, "method": "er"})
    assert [type(event) for event in sweep(runs, tmp_path, ON_RAY)] == [RunStarted, RunFailed]
    (again,) = sweep(runs, tmp_path, ON_RAY)
    assert again == RunFailed(runs[0].settings, "RecursionError: no such module", earlier=True)


def test_cpu_jobs_do_not_wait_for_gpu_jobs(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "_connect", Ray)
    runs = expand_plan({**QUICK, "method": "er", "device": ["cuda", "cpu"], "seeds": 3, "precision": "fp32"})
    events = cluster.execute(runs, tmp_path, Execution(on="ray", lanes=1))
    started = [(event.settings.device, event.settings.seed) for event in events]
    assert started == [("cuda", 0), ("cpu", 0), ("cpu", 1), ("cuda", 1), ("cpu", 2), ("cuda", 2)]

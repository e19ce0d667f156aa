import json
import struct
import sys

import pytest

from forgetless import Finetune, networks
from forgetless.experiments.loggers import LOGGERS, mlflow, numbers, tensorboard, wandb
from forgetless.methods.sgd import SGD
from forgetless.repair.profile import Group, Profile
from forgetless.training.events import Began, Ended, EpochEnded, Repaired, Result, Stepped, TaskEnded, Waiting
from forgetless.training.loop import train
from helpers import small_stream


def run(**settings):
    settings = {"epochs": 2, "batch": 8, "lr": 0.05, "buffer": 20, **settings}
    network = networks.mlp(6, inputs=4, hidden=(5,))
    return train(small_stream(), SGD(), network, finetune=Finetune(steps=3, batch=8, groups=("fc2",)), **settings)


def logged(events):
    """Return every number of the events by name, as (step, value) in order."""
    found = {}
    for event in events:
        step, values = numbers(event)
        for name, value in values.items():
            found.setdefault(name, []).append((step, value))
    return found


def failing():
    yield Began(1, 2)
    yield EpochEnded(1, 1, 0.5, {"fc1": 0.25}, 2)
    raise ArithmeticError("the loss became nan")


RESULT = Result(
    accuracy_matrix=((80.0, 0.0), (40.0, 60.0)),
    task_il_matrix=((90.0, 50.0), (70.0, 80.0)),
    untrained=(10.0, 10.0),
    before_finetuning=(0.0, 50.0),
    losses=(),
    epoch_changes=(),
    task_changes=(),
    tensor_changes={},
    boundaries=(),
    profile=Profile((Group("fc1", 0.5, 75, 0.75, False), Group("fc2", 1.5, 25, 0.25, True)), 1),
    finetunings=(Repaired(40, ("fc2",), 2.0, 1.0),),
    flops={"train": 300},
    seconds={"total": 1.5},
    steps=40,
    network=networks.mlp(2, inputs=2),
    engine={},
)


def test_each_event_has_these_numbers():
    assert numbers(Began(2, 40)) == numbers(Stepped(10, 1, 1)) == numbers(Waiting()) == (0, {})
    assert numbers(EpochEnded(1, 2, 0.5, {"fc1": 0.25, "fc2": 1.0}, 20)) == (
        20, {"loss": 0.5, "change/fc1": 0.25, "change/fc2": 1.0}
    )  # fmt: skip
    assert numbers(Repaired(30, ("fc2",), 2.0, 1.0)) == (
        30, {"finetuning/first_loss": 2.0, "finetuning/last_loss": 1.0}
    )  # fmt: skip
    assert numbers(TaskEnded(2, (40.0, 60.0, 0.0), (70.0, 80.0, 45.0), 40, 2)) == (40, {
        "accuracy/task_1": 40.0, "accuracy/task_2": 60.0, "accuracy/task_3": 0.0, "accuracy/mean": 50.0,
        "task_il_accuracy/task_1": 70.0, "task_il_accuracy/task_2": 80.0, "task_il_accuracy/task_3": 45.0,
        "task_il_accuracy/mean": 75.0,
    })  # fmt: skip


def test_the_end_has_these_numbers():
    assert numbers(Ended(RESULT)) == (40, {
        "final/accuracy": 50.0, "final/task_il_accuracy": 75.0, "final/forgetting": 40.0,
        "final/accuracy_before_finetuning": 25.0, "sensitivity/fc1": 0.5, "sensitivity/fc2": 1.5, "chosen/fc1": 0.0,
        "chosen/fc2": 1.0, "chosen_share": 0.25, "flops/train": 300.0, "seconds/total": 1.5,
    })  # fmt: skip


def test_a_run_logs_steps_and_both_accuracies():
    events = list(run())
    ends = [event for event in events if isinstance(event, TaskEnded)]
    assert [event.step for event in ends] == [6, 12, 18]  # three batches an epoch, two epochs a task
    assert [event.step for event in events if isinstance(event, EpochEnded)] == [3, 6, 9, 12, 15, 18]
    assert tuple(event.task_il for event in ends) == events[-1].result.task_il_matrix


def test_tensorboard_has_every_number_at_its_step(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plain = list(run())
    events = list(tensorboard(run(), tmp_path, settings={"lr": 0.05}))
    assert [type(event) for event in events] == [type(event) for event in plain]
    read = EventAccumulator(str(tmp_path)).Reload()
    expected = logged(events)
    assert set(read.Tags()["scalars"]) == expected.keys()
    for name, points in expected.items():
        found = [(point.step, point.value) for point in read.Scalars(name)]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in points], name
    assert len(expected["loss"]) == 6
    assert len(expected["accuracy/mean"]) == 3
    (text,) = read.Tensors("settings/text_summary")
    assert b"| lr | 0.05 |" in text.tensor_proto.string_val[0]


def test_mlflow_has_every_number_at_its_step(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/runs.db"
    events = list(mlflow(run(), "digits", {"lr": 0.05}, name="first", uri=uri))
    with pytest.raises(ArithmeticError, match="became nan"):
        list(mlflow(failing(), "digits", name="second", uri=uri))
    left = mlflow(run(), "digits", name="third", uri=uri)
    next(left)
    left.close()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits").experiment_id
    runs = {found.info.run_name: found for found in client.search_runs([experiment])}
    assert {name: found.info.status for name, found in runs.items()} == {
        "first": "FINISHED", "second": "FAILED", "third": "KILLED"
    }  # fmt: skip
    assert runs["first"].data.params == {"lr": "0.05"}
    expected = logged(events)
    assert runs["first"].data.metrics.keys() == expected.keys()
    for name, points in expected.items():
        history = client.get_metric_history(runs["first"].info.run_id, name)
        assert [(point.step, point.value) for point in history] == points, name
    assert runs["second"].data.metrics == {"loss": 0.5, "change/fc1": 0.25}


def read_wandb(file):
    """Yield the records of a run's file: a header, then blocks of 32 KiB that hold parts of records."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), 7, b""
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:  # no room for the head of a part
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def test_wandb_has_every_number_at_its_step(tmp_path):
    pytest.importorskip("wandb")
    import wandb as library

    events = list(wandb(run(), "digits", {"lr": 0.05}, mode="offline", dir=str(tmp_path)))
    library.teardown()  # waits for its process, which writes the file
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    expected, found, codes = logged(events), {}, []
    for record in read_wandb(file):
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                found.setdefault(name, []).append((record.history.step.num, json.loads(item.value_json)))
        codes += [record.exit.exit_code] if record.HasField("exit") else []
    assert found == expected
    assert codes == [0]


@pytest.mark.parametrize("name", LOGGERS)
def test_a_log_is_open_from_first_event_to_exit(name, tmp_path, monkeypatch):
    calls = []

    class Sink:
        def __init__(self, *arguments, **settings):
            calls.append("opened")

        def __getattr__(self, called):
            calls.append(called)
            return Sink.__new__(Sink)

        def __call__(self, *arguments, **settings):
            return Sink.__new__(Sink)

    library = type(sys)("library")
    library.SummaryWriter = library.init = library.MlflowClient = Sink
    library.entities, library.Error, library.MlflowException = Sink.__new__(Sink), OSError, OSError
    monkeypatch.setattr("forgetless.experiments.loggers.load_extra", lambda *_: library)
    last = {"tensorboard": "close", "wandb": "finish", "mlflow": "set_terminated"}[name]
    reader = LOGGERS[name](run(), **({"folder": tmp_path} if name == "tensorboard" else {}))
    assert not calls
    for event in reader:
        if isinstance(event, EpochEnded):
            assert last not in calls
            break
    assert calls[0] == "opened"
    reader.close()
    assert calls[-1] == last
    calls.clear()
    with pytest.raises(ArithmeticError):
        list(LOGGERS[name](failing(), **({"folder": tmp_path} if name == "tensorboard" else {})))
    assert calls[-1] == last


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_library_is_named_with_its_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"loggers\.{name} needs .*pip install 'forgetless\[{name}\]'"):
        LOGGERS[name](iter(()), **({"folder": tmp_path} if name == "tensorboard" else {}))


def test_wandb_that_cannot_start_is_an_error(monkeypatch):
    import wandb as wandb_library

    def refuse(**settings):
        raise wandb_library.Error("no API key")

    monkeypatch.setattr(wandb_library, "init", refuse)
    with pytest.raises(ValueError, match="wandb could not start: no API key"):
        list(wandb([]))


def test_mlflow_that_cannot_start_is_an_error():
    with pytest.raises(ValueError, match="mlflow could not start: .*foo://bar"):
        list(mlflow(run(), "digits", uri="foo://bar"))

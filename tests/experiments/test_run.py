import sys
import tempfile
import time
from dataclasses import dataclass

import pytest
import torch

from forgetless import NonFiniteError
from forgetless.experiments import checkpoint, record
from forgetless.experiments import run as build
from forgetless.experiments.checkpoint import Stop
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.storage import Schedule
from forgetless.methods import setting
from forgetless.methods.sgd import SGD
from forgetless.methods.si import SI
from forgetless.training import loop as training
from forgetless.training.events import Trained
from helpers import lasting, small_stream

QUICK = {"epochs": 1, "batch": 50, "replay": 50}


def test_a_run_that_has_a_record_is_not_done_again(tmp_path):
    settings, sources = resolve("seq-digits", "sgd", QUICK)
    events = []
    first = build.run(settings, sources, tmp_path, events.append)
    assert events
    seen = len(events)
    again = build.run(settings, sources, tmp_path, events.append)
    assert len(events) == seen
    assert again == first
    assert record.path(tmp_path, settings).exists()


def test_the_same_settings_give_the_same_numbers():
    settings, _ = resolve("seq-digits", "derpp", {**QUICK, "repair": "fpf", "steps": 5})
    one, two = (build.run(settings).to_dict() for _ in range(2))
    for values in (one, two):
        del values["seconds"]
    assert one == two


def test_an_option_a_method_does_not_have_is_answered_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"derpp has no setting 'alhpa'; did you mean 'alpha'\? \(its own settings: alpha, beta"
    ):
        resolve("seq-digits", "derpp", {"alhpa": 3})
    with pytest.raises(ValueError, match="sgd has no setting 'epoch'; did you mean 'epochs'.*no settings of its own"):
        resolve("seq-digits", "sgd", {"epoch": 3})
    settings, _ = resolve("seq-digits", "forgetless.methods.derpp:DERpp", {"alhpa": 3})  # a path says nothing before
    with pytest.raises(ValueError, match=r"derpp:DERpp has no setting 'alhpa'; did you mean 'alpha'\?"):
        build.build_method(settings)


def test_networks_are_given_what_they_take():
    stream = build.build_stream(resolve("seq-digits", "sgd", {})[0])
    for name, first in (("mlp", (100, 64)), ("resnet18", (64, 1, 3, 3)), ("vgg11", (64, 1, 3, 3))):
        network = build.build_network(resolve("seq-digits", "sgd", {"network": name})[0], stream)
        assert tuple(next(network.parameters()).shape) == first


def test_own_streams_methods_and_networks_by_path(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(
        "import torch\n"
        "from forgetless.methods.er import ER\n"
        "from forgetless.data.builders import from_tensors\n"
        "def network(classes, inputs):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, classes))\n"
        "y = torch.arange(4).repeat(20)\n"
        "stream = from_tensors((60 * y[:, None, None]).expand(80, 3, 3).to(torch.uint8), y, [2, 2])\n"
        "class Mine(ER.__mro__[1]):\n"
        "    def step(self, learner, batch):\n"
        "        logits = learner.network(learner.augment(batch.x))\n"
        "        loss = torch.nn.functional.cross_entropy(logits, batch.y)\n"
        "        learner.update(loss)\n"
        "        return loss.detach(), {'logits': logits.detach()}\n"
    )
    monkeypatch.chdir(tmp_path)
    given = {"network": "own_parts:network", "epochs": 2, "batch": 8, "replay": 8, "lr": 0.5}
    settings, _ = resolve("own_parts:stream", "own_parts:Mine", given)
    assert len(build.run(settings).accuracy_matrix) == 2
    named = ("own_parts:stream", "own_parts:Mine", "own_parts:network")
    before = build._own_code(settings)
    assert set(before) == set(named)
    with (tmp_path / "own_parts.py").open("a") as file:
        file.write("# changed\n")
    after = build._own_code(settings)
    assert all(after[name] != before[name] for name in named)
    assert build._own_code(resolve("seq-digits", "er", {})[0]) == {}
    (tmp_path / "own_package.py").write_text("from own_parts import Mine\n")
    elsewhere, _ = resolve("seq-digits", "own_package:Mine", {})
    assert build._own_code(elsewhere) == {"own_package:Mine": after["own_parts:Mine"]}  # of where it is written
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as in a notebook
    monkeypatch.setattr(sys.modules["__main__"], "own_stream", sys.modules["own_parts"].stream, raising=False)
    assert build._own_code(resolve("__main__:own_stream", "er", {})[0]) == {}


def test_what_is_no_method_is_refused():
    with pytest.raises(ValueError, match="is not a subclass of forgetless.methods.Method"):
        build.build_method(resolve("seq-digits", "json:dumps", {})[0])


def test_runs_in_lanes_leave_the_records_of_single_runs_and_are_not_done_again(tmp_path):
    ways = [(method, seed) for method in ("er", "sgd") for seed in (0, 1)]
    settings = [resolve("seq-digits", method, {**QUICK, "seed": seed})[0] for method, seed in ways]
    found = {made.id: made.to_dict() for _, made in build.run_lanes(settings, lanes=2, out=tmp_path)}
    assert set(found) == {one.id for one in settings}
    for one in settings:
        alone, there = build.run(one).to_dict(), record.read(record.path(tmp_path, one)).to_dict()
        for values in (alone, there, found[one.id]):
            del values["seconds"]
        assert alone == there == found[one.id]
    again = list(build.run_lanes(settings, lanes=2, out=tmp_path))
    assert {made.id for _, made in again} == set(found)


def test_a_run_that_fails_in_lanes_gives_its_error_and_stops_no_other():
    ways = [{**QUICK, "lr": 1e20}, {**QUICK, "seed": 1}, QUICK, {**QUICK, "buffer": 3}]
    settings = [resolve("seq-digits", "er", given)[0] for given in ways]
    found = {one.id: made for one, made in build.run_lanes(settings, lanes=2)}
    assert isinstance(found[settings[0].id].error, NonFiniteError)
    assert "Traceback" in found[settings[0].id].trace
    assert "buffer is 3" in str(found[settings[3].id].error)
    assert found[settings[2].id].accuracy > 15


FINETUNINGS = [
    {"repair": "none"},
    {"groups": "all", "ft_lr": 0.05},
    {"ft_lr": 1e300},  # which fails, after the training
    {"ft_lr": 0.1},
    {"ft_lr": 0.01, "steps": 7},
    {"ft_lr": 0.1, "kd": 0.5},
    {"ft_lr": 0.1, "kd": 0.2},
]


@pytest.mark.parametrize("method", ["er", "icarl", "sgd", "oewc", "derpp", "si"])
def test_runs_that_differ_only_in_fpf_share_a_training_and_end_as_each_does_alone(method, tmp_path, monkeypatch):
    ways = [way for way in FINETUNINGS if method != "icarl" or "kd" not in way]
    settings = [resolve("seq-digits", method, {**QUICK, "repair": "fpf", **way})[0] for way in ways]
    assert len({one.training for one in settings}) == (1 if method == "icarl" else 2)
    alone = {one.id: lasting(build.run(one)) for one in settings if one.ft_lr != 1e300}
    began = []
    start = build.start
    monkeypatch.setattr(build, "start", lambda *a, **k: began.append(k["state"] is None) or start(*a, **k))
    for lanes in (1, 3):
        began.clear()
        found = {one.id: made for one, made in build.run_lanes(settings, lanes, tmp_path / str(lanes))}
        assert began.count(True) == len({one.training for one in settings})
        assert len(began) == len(found) == len(ways)
        for one in settings:
            if one.ft_lr == 1e300:
                assert "overflow" in str(found[one.id].error)
                continue
            assert lasting(found[one.id]) == alone[one.id]
            assert record.read(record.path(tmp_path / str(lanes), one)).accuracy == alone[one.id]["accuracy"]


def test_where_a_shared_training_cannot_begin_every_run_gives_its_error():
    ways = [{"ft_lr": rate, "buffer": 3} for rate in (0.1, 0.2, 0.3)]
    settings = [resolve("seq-digits", "er", {**QUICK, "repair": "fpf", **way})[0] for way in ways]
    found = [made for _, made in build.run_lanes(settings, 2)]
    assert len(found) == 3
    assert all("buffer is 3" in str(made.error) for made in found)


def test_a_shared_training_goes_on_from_a_checkpoint_inside_its_finetuning(tmp_path):
    """Its state to share is over by then, so that the next run trains."""
    ways = [{"ft_lr": rate} for rate in (0.1, 0.2, 0.3)]
    settings = [resolve("seq-digits", "er", {**QUICK, "repair": "fpf", **way})[0] for way in ways]
    stop = Stop()
    kept = build.Kept(settings[0], build.build_stream(settings[0]), tmp_path, None, sources={})
    for event in kept.run:
        if isinstance(event, Trained):
            stop.since = 0.0
        if kept.saw(event, stop):
            break
    assert build.checkpoint_path(tmp_path, settings[0]).exists()
    found = {one.id: made for one, made in build.run_lanes(settings, 1, tmp_path)}
    for one in settings:
        assert found[one.id].accuracy_matrix == build.run(one).accuracy_matrix


def test_a_method_of_the_users_shares_no_training():
    ways = [{"repair": "fpf", "ft_lr": 0.1}, {"repair": "fpf", "ft_lr": 0.2}, {}]
    for name in ("own_parts:network", "own_parts.network", ""):
        for method in ("er",) if name else ("own_parts:Mine", "own_parts.Mine"):
            part = {"network": name} if name else {}
            made = [resolve("seq-digits", method, {**way, **part})[0] for way in ways]
            assert [one.training for one in made] == [one.id for one in made]


def test_where_a_state_cannot_be_taken_each_run_trains(monkeypatch):
    ways = [{"repair": "fpf", "ft_lr": 0.1}, {"repair": "fpf", "ft_lr": 0.2}, {}]
    settings = [resolve("seq-digits", "er", {**QUICK, **way})[0] for way in ways]

    def fail(run):
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(training.Run, "state_dict", fail)
    found = {one.id: made.accuracy for one, made in build.run_lanes(settings, 2)}
    assert found == {one.id: build.run(one).accuracy for one in settings}


def test_those_that_share_a_training_come_before_the_next_training():
    """So that its state need not be held for longer."""
    ways = [{"seed": seed, "ft_lr": rate} for seed in (0, 1, 2) for rate in (0.1, 0.2)]
    settings = [resolve("seq-digits", "er", {**QUICK, "repair": "fpf", **way})[0] for way in ways]
    began = []
    list(build.run_lanes(settings, 1, on_start=lambda one: began.append((one.seed, one.ft_lr))))
    assert began == [(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2), (2, 0.1), (2, 0.2)]


def test_a_training_that_is_postponed_begins_again_for_all_that_share_it(monkeypatch):
    ways = [{"seed": 1, "epochs": 4}, {"ft_lr": 0.1}, {"ft_lr": 0.2}, {"repair": "none"}]
    settings = [resolve("seq-digits", "er", {**QUICK, "repair": "fpf", **way})[0] for way in ways]
    left = [1]
    original = training._train_task

    def train_task(run):
        if run.settings.seed == 0 and run.position.task == 1 and left:
            left.pop()
            raise torch.cuda.OutOfMemoryError("no room")
        return original(run)

    monkeypatch.setattr(training, "_train_task", train_task)
    found = {one.id: made for one, made in build.run_lanes(settings, 2)}
    assert not left
    for one in settings:
        assert found[one.id].accuracy_matrix == build.run(one).accuracy_matrix


@pytest.mark.parametrize("when", [0, 2], ids=["the first", "one that goes on"])
def test_a_run_that_is_postponed_in_its_finetuning_ends_as_it_does_alone(when, monkeypatch):
    ways = [{"seed": 1, "epochs": 4}, {"ft_lr": 0.1}, {"ft_lr": 0.2}, {"ft_lr": 0.3}]
    settings = [resolve("seq-digits", "er", {**QUICK, "repair": "fpf", **way})[0] for way in ways]
    left = [1]
    original = training._finetune

    def finetune(run):
        if run.settings.finetune.lr == ways[1 + when]["ft_lr"] and run.settings.seed == 0 and left:
            left.pop()
            raise torch.cuda.OutOfMemoryError("no room")
        return original(run)

    monkeypatch.setattr(training, "_finetune", finetune)
    found = {one.id: made for one, made in build.run_lanes(settings, 3)}
    assert not left
    for one in settings:
        assert found[one.id].accuracy_matrix == build.run(one).accuracy_matrix


def test_a_folder_for_records_that_is_none_is_told_before_training(tmp_path):
    (tmp_path / "file").touch()
    settings = resolve("seq-digits", "sgd", QUICK)[0]
    began = []
    with pytest.raises(OSError, match="where nothing can be written"):
        build.run(settings, out=tmp_path / "file", on_event=began.append)
    with pytest.raises(OSError, match="where nothing can be written"):
        list(build.run_lanes([settings], out=tmp_path / "file", on_start=began.append))
    assert not began


def test_a_damaged_record_does_not_keep_the_others_from_their_runs(tmp_path):
    runs = [resolve("seq-digits", "sgd", {**QUICK, "seed": seed})[0] for seed in (0, 1)]
    record.path(tmp_path, runs[0]).parent.mkdir()
    record.path(tmp_path, runs[0]).write_text("{")
    found = {one.id: made for one, made in build.run_lanes(runs, out=tmp_path)}
    assert "is not a record" in str(found[runs[0].id].error)
    assert found[runs[1].id].accuracy == build.run(runs[1]).accuracy


def test_a_state_that_cannot_be_kept_is_warned_of_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(SI, "state_dict", lambda self, learner: {"seen": {1, 2}})
    settings = resolve("seq-digits", "si", QUICK)[0]
    with pytest.warns(UserWarning, match="no checkpoints are written: a set cannot be kept in a checkpoint"):
        made = build.run(settings, out=tmp_path, schedule=Schedule(steps=10, seconds=None))
    assert made.accuracy == build.run(settings).accuracy


@pytest.mark.parametrize("where", ["state_dict", "save"])
def test_a_checkpoint_there_is_no_memory_for_is_warned_of_and_the_run_goes_on(where, tmp_path, monkeypatch):
    def out_of_memory(*_):
        raise torch.cuda.OutOfMemoryError("no room for a copy")

    monkeypatch.setattr(
        *((training.Run, "state_dict") if where == "state_dict" else (checkpoint, "save")), out_of_memory
    )
    settings = resolve("seq-digits", "er", QUICK)[0]
    with pytest.warns(UserWarning, match="no checkpoint was written: no room for a copy"):
        ((_, made),) = build.run_lanes([settings], 1, tmp_path, schedule=Schedule(steps=10, seconds=None))
    monkeypatch.undo()
    assert made.accuracy_matrix == build.run(settings).accuracy_matrix


def test_what_a_stop_finds_trained_is_not_trained_again(tmp_path, monkeypatch):
    settings = [resolve("seq-digits", "er", {**QUICK, "repair": "fpf", "ft_lr": rate})[0] for rate in (0.1, 0.2, 0.3)]
    stop, share = Stop(), build._Pack._share

    def share_and_stop(pack, one, run):
        share(pack, one, run)
        stop.since = time.monotonic()

    monkeypatch.setattr(build._Pack, "_share", share_and_stop)
    with pytest.raises(build.Stopped):
        list(build.run_lanes(settings, 1, tmp_path, stop=stop))
    monkeypatch.undo()
    assert all(build.checkpoint_path(tmp_path, one).exists() for one in settings)
    began = []
    start = build.start
    monkeypatch.setattr(build, "start", lambda *a, **k: began.append(k["state"] is not None) or start(*a, **k))
    found = {one.id: made for one, made in build.run_lanes(settings, 1, tmp_path)}
    assert began == [True] * 3
    for one in settings:
        assert found[one.id].accuracy_matrix == build.run(one).accuracy_matrix


def test_parts_of_the_users_that_do_not_fit_are_named(monkeypatch):
    def make(**parts):
        monkeypatch.setattr(build.catalogue, "load", lambda kind, name: parts[kind])
        settings = resolve(
            "own:stream", "own:Method", {"network": "own:network", "order": 3, **parts.get("given", {})}
        )[0]
        if "stream" in parts:
            return build.build_stream(settings)
        return build.build_method(settings) if "method" in parts else build.build_network(settings, small_stream())

    for stream in (small_stream(), small_stream):
        with pytest.raises(ValueError, match="order is 3, but stream 'own:stream' takes none"):
            make(stream=stream)
    with pytest.raises(ValueError, match="stream 'own:stream' gives a list; it must give a Stream"):
        make(stream=lambda order: [order])
    with pytest.raises(ValueError, match="network 'own:network' gives a int; it must give an nn.Module"):
        make(network=lambda classes: classes)
    with pytest.raises(ValueError, match="network 'own:network' is a Linear; it must be a function that makes one"):
        make(network=torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="network 'own:network' is called with classes: missing a required .*'depth'"):
        make(network=lambda classes, depth: classes)

    @dataclass
    class Own(SGD):
        strong: bool = setting(False, "or not")
        times: int = setting(1, "how often")

    assert make(method=Own, given={"strong": True, "times": 3}) == Own(True, 3)
    for given, match in (
        ({"strong": "no"}, "strong is 'no'; it must be true or false"),
        ({"times": 1.5}, "times is 1.5; it must be a whole number"),
        ({"times": True}, "times is True; it must be a whole number"),
    ):
        with pytest.raises(ValueError, match=match):
            make(method=Own, given=given)

    @dataclass
    class Clashing(SGD):
        threshold: float = setting(0.5, "of its own")

    with pytest.raises(ValueError, match="own:Method has a setting 'threshold', as every run has: give it another"):
        make(method=Clashing)


def test_what_learns_at_the_end_alone_has_nothing_to_forget_unless_it_is_tested_on_the_way():
    given = {"epochs": 1, "batch": 50, "memory_epochs": 4}
    plain, tested = (build.run(resolve("seq-digits", "gdumb", {**given, "anytime": on})[0]) for on in (False, True))
    assert (plain.forgetting, plain.backward_transfer, plain.forward_transfer) == (None, None, None)
    assert tested.accuracy == plain.accuracy
    assert tested.forgetting is not None
    assert tested.anytime[0] > plain.anytime[0]


def test_a_method_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    (tmp_path / "half.py").write_text(
        "from dataclasses import dataclass\nfrom forgetless.methods import Method\n"
        "from forgetless.methods.er import ER\n"
        "@dataclass\nclass Needs(ER):\n    strength: float\n"
        "class Stepless(Method):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="half:Needs cannot be made: .*'strength'"):
        build.build_method(resolve("seq-digits", "half:Needs", {})[0])
    with pytest.raises(ValueError, match="half:Stepless cannot be made: .*step"):
        build.build_method(resolve("seq-digits", "half:Stepless", {})[0])


def test_the_record_of_a_run_that_is_over_is_kept_elsewhere_where_the_disk_is_full(tmp_path, monkeypatch):
    settings = resolve("seq-digits", "sgd", {"epochs": 1, "batch": 100})[0]
    write, spare = record.write, tmp_path / "spare"
    monkeypatch.setattr(tempfile, "tempdir", str(spare))

    def full(made, file):
        if not file.is_relative_to(spare):
            raise OSError(28, "No space left on device")
        write(made, file)

    monkeypatch.setattr(record, "write", full)
    with pytest.raises(OSError, match=f"the record is kept as .*forgetless-{settings.id}.json: copy it there"):
        build.run(settings, out=tmp_path / "runs")
    assert record.read(spare / f"forgetless-{settings.id}.json").id == settings.id

    def nowhere(made, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write", nowhere)  # what is there is of the run before
    with pytest.raises(OSError, match="No space left on device$"):
        build.run(settings, out=tmp_path / "runs")


def test_a_network_that_is_given_twice_is_refused(tmp_path, monkeypatch):
    (tmp_path / "shared_one.py").write_text(
        "from torch import nn\nshared = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        "def make():\n    return shared\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = [resolve("seq-digits", "sgd", {**QUICK, "network": "shared_one:make", "seed": n})[0] for n in (0, 1)]
    assert build.run(settings[0])
    with pytest.raises(ValueError, match="network 'shared_one:make' gives one object again and again; it must make a"):
        build.run(settings[1])


def test_a_text_is_no_folder_and_settings_by_hand_may_lack_some(tmp_path):
    settings = resolve("seq-digits", "sgd", QUICK)[0]
    for call in (build.run, lambda settings, _, out: list(build.run_lanes([settings], 1, out))):
        with pytest.raises(ValueError, match=r"out is the text 'runs'; it must be a path: Path\('runs'\)"):
            call(settings, None, "runs")
    with pytest.raises(ValueError, match="repair is 'fpf', but the run has no value for each of steps, ft_lr and"):
        build.run(Settings("seq-digits", "er", repair="fpf"))

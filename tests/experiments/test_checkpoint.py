import copy
import json
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from forgetless import Finetune, networks
from forgetless.config import catalogue
from forgetless.data import benchmarks as streams
from forgetless.experiments import checkpoint
from forgetless.experiments.checkpoint import CheckpointedRun, CheckpointError, Stop, check, load, save
from forgetless.experiments.settings import resolve
from forgetless.experiments.storage import Schedule
from forgetless.methods import Method
from forgetless.methods.derpp import DERpp
from forgetless.methods.sgd import SGD
from forgetless.networks.seed import with_seed
from forgetless.training.events import Ended, Repaired, Stepped
from forgetless.training.loop import train
from forgetless.training.plain import flatten
from helpers import learner, small_stream

STREAM = small_stream(per_class=30)
FINETUNE = {
    "none": None,
    "fpf": Finetune(steps=5, lr=0.3, batch=12),
    "k-fpf": Finetune.k_fpf(7, steps=4, lr=0.3, batch=12),
    "k-fpf-kd": Finetune.k_fpf(7, steps=4, lr=0.3, batch=12, distill=0.2),
    "budget": Finetune.within(4.0, batch=4),  # eight repairs
}


def start(name, repair, state=None, **changes):
    method = catalogue.load("method", name)(**({"memory_epochs": 3} if name == "gdumb" else {}))
    network = with_seed(lambda: networks.mlp(6, inputs=4, hidden=(16,)), 0)
    finetune = FINETUNE[repair]
    if finetune is not None and finetune.budget is None and not method.sequential:
        finetune = Finetune(finetune.every, steps=4, lr=0.3, batch=12, groups=("fc2",))
    given = {"epochs": 2, "batch": 4, "lr": 0.1, "replay": 6, "buffer": 36, "seed": 3, "finetune": finetune, **changes}
    return train(STREAM, method, network, state=state, **given)


def with_states(run):
    """Return the outcome of a run, and its first state after every tenth step, by the step."""
    states = {}
    for event in run:
        if isinstance(event, Stepped) and event.step % 10 == 0 and event.step not in states:
            states[event.step] = run.state_dict()
    return *outcome([event]), states


def resumed(state, name, repair, file, **changes):
    """Return what a run tells that starts from a state in a file."""
    save(state, {}, file)
    return outcome(start(name, repair, state=load(file)[0], **changes))


def outcome(run):
    *_, last = run
    assert isinstance(last, Ended)
    result = last.result
    weights = torch.cat([value.double().flatten() for value in result.network.state_dict().values()])
    told = [
        result.accuracy_matrix, result.task_il_matrix, result.untrained, result.before_finetuning, result.losses,
        result.epoch_changes, result.task_changes, result.tensor_changes, result.boundaries, str(result.profile),
        result.finetunings, result.flops, result.steps,
    ]  # fmt: skip
    return weights, told


@pytest.mark.parametrize("repair", FINETUNE)
@pytest.mark.parametrize("name", catalogue.METHODS)
def test_a_run_resumes_from_any_step_bit_for_bit(name, repair, tmp_path):
    if repair == "k-fpf-kd" and name in ("agem", "icarl", "gdumb", "scr"):
        pytest.skip("their memory holds no logits")
    if repair.startswith("k-fpf") and name == "joint":
        pytest.skip("joint never changes its task")
    changes = {"freeze": ("fc1",)} if repair == "none" and name != "joint" else {}
    if name == "joint" and repair == "fpf":
        changes = {"finetune": Finetune(steps=5, lr=0.3, batch=12, groups=("fc2",))}
    weights, told, states = with_states(start(name, repair, **changes))
    assert list(states) == list(range(10, told[-1] + 1, 10))
    for place in random.Random(name + repair).sample(list(states), 3):
        again = resumed(states[place], name, repair, tmp_path / "c", **changes)
        assert torch.equal(again[0], weights), place
        assert again[1] == told, place


@pytest.mark.parametrize("anytime", [False, True])
@pytest.mark.parametrize("name", ["sgd", "er", "icarl"])
def test_a_run_with_a_budget_resumes_after_any_repair(name, anytime, tmp_path):
    changes = {"anytime": anytime} | ({"policy": "distinct"} if name == "sgd" else {})  # as in the recommended recipe
    run = start(name, "budget", **changes)
    states, repairs = {}, 0  # by the number of repairs before them
    for event in run:
        repairs += isinstance(event, Repaired)
        if repairs not in states and (state := run.state_dict()) is not None:
            states[repairs] = state
        last = event
    weights, told = outcome([last])
    assert len(states) > 3
    for state in random.Random(name).sample(list(states.values()), 3):
        again = resumed(state, name, "budget", tmp_path / "c", **changes)
        assert torch.equal(again[0], weights), state["place"]
        assert again[1] == told, state["place"]


@pytest.mark.parametrize("repair", ["fpf", "k-fpf", "k-fpf-kd"])
@pytest.mark.parametrize("name", ["sgd", "er", "derpp", "packnet", "gdumb", "icarl"])
def test_a_run_resumes_inside_any_repair_bit_for_bit(name, repair, device, tmp_path, monkeypatch):
    if repair == "k-fpf-kd" and name in ("gdumb", "icarl"):
        pytest.skip("their memory holds no logits")
    monkeypatch.setattr("forgetless.training.repair.PROGRESS", 2)
    changes = {"freeze": ("fc1",)} if repair == "fpf" and name == "er" else {}
    changes |= {"device": "cuda", "deterministic": True} if device == "cuda" else {}
    run, states = start(name, repair, **changes), []
    for event in run:
        if isinstance(event, Stepped) and (state := run.state_dict()) is not None and state["finetuning"]:
            states.append(state)
    weights, told = outcome([event])
    left = {state["finetuning"]["left"] for state in states}
    assert 0 in left
    assert len(left) > 1
    assert len({state["place"][0] for state in states}) == len(told[10])  # some of each finetuning
    for state in random.Random(name).sample(states, min(3, len(states))) + states[-2:]:
        again = resumed(state, name, repair, tmp_path / "c", **changes)
        assert torch.equal(again[0], weights), state["place"]
        assert again[1] == told, state["place"]


def test_a_repair_inside_an_epoch_keeps_its_order():
    changes = {"finetune": Finetune.k_fpf(16, steps=12, lr=0.3, batch=12, groups=("fc2",))}  # epochs have 15 steps
    weights, told = outcome(start("er", "k-fpf", **changes))
    run = start("er", "k-fpf", **changes)
    states = [run.state_dict() for event in run if isinstance(event, Stepped) and event.step == 16]
    assert [state["place"] for state in states] == [[16, 0, 1, 0], [16, 0, 1, 0]]
    for state in states:
        again = outcome(start("er", "k-fpf", state=state, **changes))
        assert torch.equal(again[0], weights)
        assert again[1] == told


def test_before_the_first_step_there_is_no_state():
    run = start("er", "fpf")
    next(run)
    assert run.state_dict() is None
    assert all(run.state_dict() is not None for event in run if isinstance(event, Stepped))


def test_a_state_comes_back_as_it_was(tmp_path):
    state = {
        "a": torch.arange(6.0).reshape(2, 3).T, "b": [torch.tensor(True), None, 1.5, "x"],
        "c": {1: torch.zeros(0), 2: [3]},
        "d": torch.tensor(3, dtype=torch.int64), "e": torch.randn(4).bfloat16(), "f": {"$odd": 1},
    }  # fmt: skip
    save(state, {"id": "x"}, tmp_path / "c")
    found, about = load(tmp_path / "c")
    assert about == {"id": "x"}
    assert torch.equal(found["a"], state["a"])
    assert torch.equal(found["e"], state["e"])
    assert found["b"][1:] == [None, 1.5, "x"]
    assert found["c"][2] == [3]
    assert found["c"][1].shape == (0,)
    assert found["d"].dtype == torch.int64
    assert found["f"] == {"$odd": 1}
    with pytest.raises(TypeError, match="a tuple as a key cannot be kept in a checkpoint"):
        flatten({"method": {("a", 1): torch.zeros(1)}}, {})
    with pytest.raises(TypeError, match="a set cannot be kept in a checkpoint"):
        save({"a": {1, 2}}, {}, tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = start("derpp", "k-fpf")
    state = next(run.state_dict() for event in run if isinstance(event, Stepped) and event.step >= 60)
    file = tmp_path_factory.mktemp("whole") / "c"
    save(state, {"settings": {}, "data": "0"}, file)
    return file.read_bytes()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_changed_byte_or_missing_end_is_detected(whole, data, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "fuzzed"
    damaged = bytearray(whole)
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(whole) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    else:
        del damaged[data.draw(st.integers(0, len(whole) - 1)) :]
    file.write_bytes(damaged)
    try:
        found, about = load(file)
    except CheckpointError as error:
        assert "is corrupt" in str(error)  # noqa: PT017
    else:  # a byte of the header's spaces, or the like, that says nothing
        original = file.with_name("original")
        original.write_bytes(whole)
        assert about == load(original)[1]
        assert str(found) == str(load(original)[0])


def test_a_file_of_something_else_is_refused(tmp_path):
    save_file({}, tmp_path / "c")
    with pytest.raises(CheckpointError, match="is corrupt: its checksum is wrong"):
        load(tmp_path / "c")


def test_another_format_is_refused(tmp_path):
    text = json.dumps({"format": 9, "state": {}, "about": {}})
    save_file({}, tmp_path / "c", {"forgetless": text, "checksum": checkpoint._checksum(text, {})})
    with pytest.raises(CheckpointError, match="it has format 9, this version reads 5"):
        load(tmp_path / "c")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    expected = {"settings": {"lr": 0.1, "seed": 0}, "data": "aa", "torch": "2", "forgetless": "1.1", "code": {}}
    check(expected, expected, tmp_path)
    with pytest.raises(CheckpointError, match=r"belongs to another run: lr 0.2, here 0.1; remove it"):
        check({**expected, "settings": {"lr": 0.2, "seed": 0}}, expected, tmp_path)
    with pytest.raises(CheckpointError, match=r"written with other data \(checksum bb, now aa\)"):
        check({**expected, "data": "bb"}, expected, tmp_path)
    with pytest.warns(UserWarning, match="was written with torch 1, this is 2"):
        check({**expected, "torch": "1"}, expected, tmp_path)
    with pytest.warns(UserWarning, match="was written with forgetless 1.0, this is 1.1: .* results may differ"):
        check({**expected, "forgetless": "1.0"}, expected, tmp_path)


def test_the_checksum_of_data_covers_labels_and_images():
    stream = streams.seq_digits()
    before = stream.checksum
    assert streams.seq_digits().checksum == before
    changed = copy.deepcopy(streams.seq_digits())
    changed.tasks[3].test.y[5] += 1
    assert changed.checksum != before
    changed = copy.deepcopy(streams.seq_digits())
    changed.tasks[0].train.x[0, 0, 0, 0] += 1
    assert changed.checksum != before


def fake_run(out, steps):
    """A run whose states are only step numbers, the file of its checkpoint, and the steps of its states."""
    settings = resolve("seq-digits", "er", {})[0]
    checkpointed = CheckpointedRun(settings, STREAM, out, Schedule(steps=steps), sources={})
    taken = []

    def observe(step, *, asked=False):
        stop = Stop()
        stop.since = 0.0 if asked else None
        checkpointed.run = SimpleNamespace(state_dict=lambda: taken.append(step) or {"step": step})
        assert checkpointed.observe(Stepped(step, 1, 1), stop) == asked

    return observe, checkpointed.finish, checkpoint.path(out, settings), taken


def test_checkpoints_keep_to_their_schedule(tmp_path, monkeypatch):
    observe, finish, file, taken = fake_run(tmp_path, steps=20)
    for step in range(10, 101, 10):
        observe(step)
    assert taken == [30, 50, 70, 90]
    observe(100, asked=True)
    assert load(file)[0] == {"step": 100}
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="could not be written: No space left on device"):
        observe(110, asked=True)
    assert load(file)[0] == {"step": 100}
    finish()
    assert not list(file.parent.iterdir())


def test_a_state_that_is_not_plain_is_refused():
    class Holder(catalogue.load("method", "er")):
        pass

    method = Holder()
    method.cache = {1, 2}
    with pytest.raises(TypeError, match="Holder holds cache, a set, which a checkpoint cannot store; override"):
        method.state_dict(learner(networks.mlp(6, inputs=4), small_stream()))


@pytest.mark.parametrize("name", ["icarl", "oewc"])
def test_a_state_does_not_change_while_the_run_continues(name):
    """It is written by a thread."""
    method = catalogue.load("method", name)()
    network = with_seed(lambda: networks.mlp(6, inputs=4, hidden=(16,)), 0)
    run = train(STREAM, method, network, epochs=2, batch=4, lr=0.1, replay=6, buffer=36)
    state = next(run.state_dict() for event in run if isinstance(event, Stepped) and event.step >= 60)
    own = state["method"]["former"].values() if name == "icarl" else state["method"]["fisher"]
    places = {tensor.data_ptr() for tensor in own}
    assert places
    before = copy.deepcopy(state)
    live = method.former.state_dict().values() if name == "icarl" else method.fisher
    assert not places & {tensor.data_ptr() for tensor in live}
    for event in run:
        if isinstance(event, Stepped) and event.step >= 80:
            break
    assert str(state) == str(before)


def test_frozen_methods_and_tuples_come_back():
    class Frozen(Method):
        def step(self, learner, batch):
            raise NotImplementedError

        def __setattr__(self, name, value):
            raise AttributeError("frozen")

    method = Frozen()
    object.__setattr__(method, "sizes", (1, 2))
    method.load_state_dict(SimpleNamespace(device="cpu"), {"sizes": [3, 4], "seen": torch.ones(2)})
    assert method.sizes == (3, 4)
    assert torch.equal(method.seen, torch.ones(2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("repair", ["none", "k-fpf"])
@pytest.mark.parametrize("name", ["er", "derpp", "icarl", "oewc"])
def test_a_deterministic_run_resumes_on_a_gpu(name, repair, tmp_path):
    changes = {"device": "cuda", "deterministic": True}
    weights, told, states = with_states(start(name, repair, **changes))
    for place in (20, 60):
        again = resumed(states[place], name, repair, tmp_path / "c", **changes)
        assert torch.equal(again[0], weights), place
        assert again[1] == told, place


def test_only_the_last_checkpoint_must_be_written(tmp_path):
    observe, _, file, _ = fake_run(tmp_path, steps=1)
    file.parent.touch()
    observe(10)
    with pytest.warns(UserWarning, match="no checkpoint was written: "):
        observe(20)
    with (
        pytest.warns(UserWarning, match="no checkpoint was written"),
        pytest.raises(OSError, match="File exists|Not a directory"),
    ):
        observe(30, asked=True)


def test_a_state_with_tensors_of_the_network_is_refused():
    """A resumed run would hold copies of the weights."""

    class Holder(catalogue.load("method", "er")):
        def begin(self, learner):
            self.held = [parameter.detach() for parameter in learner.network.parameters()]

    one = learner(networks.mlp(6, inputs=4), small_stream())
    method = Holder()
    method.begin(one)
    with pytest.raises(TypeError, match="Holder holds held, a tensor of the network, which a checkpoint would copy"):
        method.state_dict(one)
    method.held = [tensor.clone() for tensor in method.held]
    assert method.state_dict(one)["held"][0].shape == (100, 4)


def test_a_state_of_another_network_is_refused():
    made = train(small_stream(), SGD(), networks.mlp(6, inputs=4, hidden=(8,)), batch=6)
    while not isinstance(next(made), Stepped):
        pass
    wider = train(small_stream(), SGD(), networks.mlp(6, inputs=4, hidden=(9,)), batch=6, state=made.state_dict())
    with pytest.raises(ValueError, match="the state is of another network; resume with that, or start again"):
        list(wider)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"lr": 0.2}, "lr is 0.2, but the state is of a run with 0.1: resume with that, or start again"),
        ({"epochs": 3}, "epochs is 3, but the state is of a run with 2"),
        ({"buffer": 40}, "buffer is 40, but the state is of a run with 36"),
        ({"seed": 4}, "seed is 4, but the state is of a run with 3"),
        ({"freeze": "fc1"}, r"freeze is \['fc1'\], but the state is of a run with \[\]"),
        ({"finetune": None}, "finetune is None, but the state is of a run with {'every': 7, 'steps': 4, "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_state_of_other_settings_is_refused(changes, match, tmp_path):
    run = start("er", "k-fpf")
    next(event for event in run if isinstance(event, Stepped))
    save(run.state_dict(), {}, tmp_path / "c")
    with pytest.raises(ValueError, match=match):
        start("er", "k-fpf", state=load(tmp_path / "c")[0], **changes)


@pytest.mark.parametrize(
    ("stream", "method", "match"),
    [
        (STREAM, DERpp(alpha=0.9), "alpha is 0.9, but the state is of a run with 0.1"),
        (small_stream(per_class=30, seed=1), DERpp(), "the data of 'small' differs from the data that"),
    ],
    ids=["method", "data"],
)
def test_a_state_of_other_data_or_method_is_refused(stream, method, match):
    def begin(stream, method, state=None):
        return train(stream, method, networks.mlp(6, inputs=4), batch=4, buffer=36, state=state)

    run = begin(STREAM, DERpp())
    next(event for event in run if isinstance(event, Stepped))
    with pytest.raises(ValueError, match=match):
        begin(stream, method, run.state_dict())
    begin(STREAM, DERpp(), run.state_dict())  # is taken


@pytest.mark.parametrize("state", [{}, "x", {"place": [0, 0, 0, 0]}], ids=["empty", "a word", "in part"])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match=r"state is a (dict|str), not the state of a run; pass what state_dict"):
        start("er", "none", state=state)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_resumes_bit_for_bit(tmp_path):
    """Of each kind the first step is counted, and is not compiled: that must be the same one. Here it can be told."""

    def backend(graph, _):
        return lambda *inputs: [1.01 * output for output in graph(*inputs)]

    def begin(state=None):
        network = torch.compile(with_seed(lambda: networks.mlp(6, inputs=4, hidden=(16,)), 0), backend=backend)
        return train(STREAM, DERpp(), network, batch=4, buffer=36, finetune=FINETUNE["k-fpf"], seed=3, state=state)

    weights, told = outcome(begin())
    run = begin()
    next(event for event in run if isinstance(event, Stepped))
    save(run.state_dict(), {}, tmp_path / "c")
    for again in (outcome(begin()), outcome(begin(load(tmp_path / "c")[0]))):
        assert torch.equal(again[0], weights)
        assert again[1] == told


def test_numbers_of_numpy_are_plain_in_a_state(tmp_path):
    numpy = pytest.importorskip("numpy")
    finetune = Finetune.k_fpf(numpy.int64(7), steps=numpy.int64(4), lr=numpy.float64(0.3), batch=numpy.int64(12))
    run = start(
        "er", "k-fpf", epochs=numpy.int64(2), lr=numpy.float64(0.1), seed=numpy.int64(3), buffer=numpy.int64(36),
        finetune=finetune,
    )  # fmt: skip
    next(event for event in run if isinstance(event, Stepped))
    save(run.state_dict(), {}, tmp_path / "c")
    (weights, told), again = outcome(start("er", "k-fpf")), outcome(start("er", "k-fpf", state=load(tmp_path / "c")[0]))
    assert torch.equal(again[0], weights)
    assert again[1] == told

import pickle

import pytest
import torch
import torch.nn.functional as F
from loops import MODE_NAMES, MODES, make, shifting
from torch import nn

from forgetless import FPF, networks
from forgetless.repair.state import DISTINCT


@pytest.mark.parametrize("policy", ["reservoir", "balanced", "distinct"])
def test_a_restored_run_resumes_bit_for_bit(tmp_path, device, policy):
    shape = (16,)

    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)).to(device)
        fpf = FPF(model, 40, every=25, steps=10, distill=0.3, policy=policy, window=5, seed=7)
        return model, fpf, torch.optim.SGD(model.parameters(), lr=0.1)

    def go(model, fpf, optimizer, batches):
        for x, y in batches:
            logits = model(x)
            optimizer.zero_grad()
            F.cross_entropy(logits, y).backward()
            optimizer.step()
            fpf.observe(x, y, logits)

    batches = list(shifting(shape, device=device))
    for stop in (3, 25, 63, 97):
        model, fpf, optimizer = build()
        go(model, fpf, optimizer, batches[:stop])
        rng = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
        torch.save([model.state_dict(), fpf.state_dict(), rng], tmp_path / "state.pt")
        go(model, fpf, optimizer, batches[stop:])
        fpf.finish()
        assert fpf.finetunings > 1
        again, resumed, optimizer = build()
        weights, state, rng = torch.load(tmp_path / "state.pt", weights_only=True)
        again.load_state_dict(weights)
        resumed.load_state_dict(state)
        torch.cuda.set_rng_state(rng) if device == "cuda" else torch.set_rng_state(rng)
        go(again, resumed, optimizer, batches[stop:])
        resumed.finish()
        assert resumed.profile() == fpf.profile()
        assert resumed.shifts == fpf.shifts
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), f"{name} differs after a stop at {stop}"


@pytest.mark.parametrize(
    ("settings", "policy"), [({"steps": 5}, "reservoir"), ({}, "distinct")], ids=["schedule", "budget"]
)
def test_a_state_that_does_not_fit_changes_nothing(settings, policy):
    model, shape = make("mlp")
    fpf = FPF(model, 64, **settings)
    fpf.observe(*next(shifting(shape)))
    state = fpf.state_dict()
    for other, match in (
        (
            FPF(networks.mlp(10, 16), 64, policy="balanced", **settings),
            f"the state has policy '{policy}'; this buffer has 'balanced'",
        ),
        (FPF(networks.mlp(10, 16), 64, **({} if settings else {"steps": 5})), "the state is of an FPF that repairs "),
    ):
        with pytest.raises(ValueError, match=match):
            other.load_state_dict(state)
        assert len(other.buffer) == 0
    with pytest.raises(ValueError, match=r"the state has format 99; this version of forgetless reads 2"):
        fpf.load_state_dict({**state, "format": 99})


def test_a_scheduled_state_of_another_network_is_refused():
    state = FPF(networks.mlp(10, 16), 64, steps=5).state_dict()
    with pytest.raises(ValueError, match="other groups of parameters"):
        FPF(networks.mlp(10, 16, hidden=(9,)), 64, steps=5).load_state_dict(state)
    with pytest.raises(ValueError, match="saved from another network"):
        FPF(networks.mlp(10, 17), 64, steps=5).load_state_dict(state)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("schedule.step", "3", r"entry schedule\.step has type str; it must be int"),
        ("generator", "x", "entry generator has type str; it must be Tensor"),
        ("schedule.chosen", "fc1", r"entry schedule\.chosen has type str; it must be list or None"),
        ("schedule.shifts", [1, "2"], r"entry schedule\.shifts\.1 has type str; it must be int"),
        ("buffer.seen", None, r"entry buffer\.seen has type NoneType; it must be int"),
        ("buffer.columns.x", [1.0], r"entry buffer\.columns\.x has type list; it must be Tensor"),
        ("buffer.generator", 3, r"entry buffer\.generator has type int; it must be Tensor or None"),
        (
            "schedule.tracker.last",
            {"fc1.weight": 0.5},
            r"tracker\.last\.fc1\.weight has type float; it must be Tensor",
        ),
        (
            "schedule.tracker.between_tasks",
            [[1, 1, "x"]],
            r"between_tasks\.0\.2 has type str; it must be int or Tensor",
        ),
        ("schedule.detector.highest", ["x"], r"detector\.highest\.0 has type str; it must be float"),
        ("upkeep.step", "3", r"entry upkeep\.step has type str; it must be int"),
        ("upkeep.anchor", {"fc1.weight": 0.5}, r"anchor\.fc1\.weight has type float; it must be Tensor"),
        ("upkeep.largest", 2.5, r"entry upkeep\.largest has type float; it must be int"),
        ("upkeep.tuner.examples", "2", r"entry upkeep\.tuner\.examples has type str; it must be int"),
        ("buffer.strata", [0], r"entry buffer\.strata has type list; it must be Tensor"),
        ("buffer.older", [0], r"entry buffer\.older has type list; it must be Tensor"),
        ("buffer.salt", "1", r"entry buffer\.salt has type str; it must be int"),
        ("upkeep.tuner.lr", "fast", r"entry upkeep\.tuner\.lr has type str; it must be float"),
    ],
)
def test_a_wrong_type_in_a_state_is_named(path, value, match):
    model, shape = make("mlp")
    within = path.startswith("upkeep") or path.removeprefix("buffer.") in DISTINCT
    fpf = FPF(model, 64, **({} if within else {"steps": 5}))
    fpf.observe(*next(shifting(shape)))
    state = fpf.state_dict()
    fpf.load_state_dict(state)
    *folders, name = path.split(".")
    inner = state
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    with pytest.raises(ValueError, match=match):
        fpf.load_state_dict(state)
    del inner[name]
    if folders[-1:] != ["columns"]:
        with pytest.raises(ValueError, match=f"the state has no entry {path}"):
            fpf.load_state_dict(state)
    assert fpf.step == 1


def test_something_other_than_a_state_is_named():
    fpf = FPF(networks.mlp(10))
    with pytest.raises(ValueError, match=r"the state is a NoneType; it must be what FPF.state_dict\(\) returned"):
        fpf.load_state_dict(None)
    with pytest.raises(ValueError, match=r"the state has the keys 'model', 'fpf'; it must be what FPF.state_dict\(\)"):
        fpf.load_state_dict({"model": fpf.model.state_dict(), "fpf": fpf.state_dict()})
    with pytest.raises(ValueError, match=r"the keys 'fc1.weight', 'fc1.bias', .*, 'fc3.weight', …; it must be"):
        fpf.load_state_dict(fpf.model.state_dict())


def test_a_state_before_the_first_step_has_the_seed():
    (model, shape), (other, _) = make("mlp"), make("mlp")
    fpf, resumed = FPF(model, 4, seed=7), FPF(other, 4, seed=7)
    resumed.load_state_dict(fpf.state_dict())
    for x, y in list(shifting(shape))[:5]:
        fpf.observe(x, y)
        resumed.observe(x, y)
    assert torch.equal(fpf.buffer["x"], resumed.buffer["x"])


def test_a_state_with_another_window_is_refused():
    state = FPF(nn.Linear(4, 2), groups="all", window=20).state_dict()
    with pytest.raises(ValueError, match="saved with window 20; this has 10"):
        FPF(nn.Linear(4, 2), groups="all", window=10).load_state_dict(state)


def test_named_groups_do_not_resume_as_chosen():
    state = FPF(nn.Linear(4, 2), every=50, groups="all").state_dict()
    chooses = FPF(nn.Linear(4, 2), every=50)
    with pytest.warns(UserWarning, match=r"saved with groups \['head'\]; this FPF has groups auto"):
        chooses.load_state_dict(state)
    assert chooses._repairer.selection.chosen is None


@pytest.mark.parametrize(("saved", "now", "holds"), [(0.0, 0.5, "does not hold"), (0.5, 0.0, "holds")])
def test_a_state_with_other_distillation_is_refused(saved, now, holds):
    fpf = FPF(nn.Linear(4, 2), every=50, distill=saved)
    fpf.observe(torch.rand(8, 4), torch.zeros(8, dtype=torch.int64), torch.rand(8, 2))
    with pytest.raises(ValueError, match=f"distill is {now}, but the buffer of the state {holds} logits"):
        FPF(nn.Linear(4, 2), every=50, distill=now).load_state_dict(fpf.state_dict())


def test_other_settings_than_the_states_warn():
    state = FPF(nn.Linear(4, 2), every=50, lr=0.1).state_dict()
    with pytest.warns(
        UserWarning, match=r"saved with steps 100, lr 0.1, threshold 0.3; this FPF has steps 20, lr 0.05, "
    ):
        FPF(nn.Linear(4, 2), every=50, steps=20, threshold=0.5).load_state_dict(state)
    FPF(nn.Linear(4, 2), every=50, lr=0.1).load_state_dict(state)  # the same: nothing to say


def test_a_state_does_not_switch_detection():
    model, shape = make("mlp")
    searching, announced = FPF(model, steps=5), FPF(model, steps=5)
    announced.observe(*next(shifting(shape)))
    announced.boundary()
    still = FPF(model, steps=5, detect=False)
    with pytest.warns(UserWarning, match="saved with detect True; this FPF has detect False"):
        still.load_state_dict(searching.state_dict())
    assert still._repairer._detector is None
    with pytest.warns(UserWarning, match="saved with detect False; this FPF has detect True"):
        searching.load_state_dict(still.state_dict())
    assert searching._repairer._detector is not None
    searching.load_state_dict(announced.state_dict())  # after a boundary, none is detected
    assert searching._repairer._detector is None


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
def test_the_object_can_be_pickled(mode):
    model, shape = make("mlp")
    fpf = FPF(model, 64, groups=["fc3"], **mode)
    fpf.observe(*next(shifting(shape)))
    again = pickle.loads(pickle.dumps(fpf))
    fpf.finish()
    again.finish()
    assert torch.equal(again.model.fc3.weight, model.fc3.weight)
    pickle.loads(pickle.dumps(fpf))


def test_numpy_numbers_are_settings_and_the_state_is_plain(tmp_path):
    numpy = pytest.importorskip("numpy")
    whole, real = numpy.int64, numpy.float32
    model, shape = make("mlp")
    fpf = FPF(
        model, whole(64), whole(10), whole(2), real(0.5), real(0.25), batch=whole(8), window=whole(5), seed=whole(3),
        threshold=real(0.5),
    )  # fmt: skip
    for x, y in list(shifting(shape))[:12]:
        fpf.observe(x, y, model(x))
    torch.save(fpf.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["schedule"]["settings"]["lr"] == 0.5
    FPF(model, 64, 10, 2, 0.5, 0.25, batch=8, window=5, seed=3, threshold=0.5).load_state_dict(state)

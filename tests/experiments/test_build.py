import sys
from dataclasses import dataclass

import pytest
import torch

from forgetless.config import catalogue
from forgetless.experiments.build import build_method, build_network, build_stream
from forgetless.experiments.finished import user_code
from forgetless.experiments.run import run
from forgetless.experiments.settings import resolve
from forgetless.methods import setting
from forgetless.methods.sgd import SGD
from helpers import small_stream


def test_an_unknown_setting_of_a_method_suggests_the_nearest():
    with pytest.raises(
        ValueError, match=r"derpp has no setting 'alhpa'; did you mean 'alpha'\? \(its own settings: alpha, beta"
    ):
        resolve("seq-digits", "derpp", {"alhpa": 3})
    with pytest.raises(ValueError, match="sgd has no setting 'epoch'; did you mean 'epochs'.*no settings of its own"):
        resolve("seq-digits", "sgd", {"epoch": 3})
    with pytest.raises(ValueError, match=r"derpp:DERpp has no setting 'alhpa'; did you mean 'alpha'\?"):
        resolve("seq-digits", "forgetless.methods.derpp:DERpp", {"alhpa": 3})


def test_networks_get_the_arguments_they_take():
    stream = build_stream(resolve("seq-digits", "sgd", {})[0])
    for name, first in (("mlp", (100, 64)), ("resnet18", (64, 1, 3, 3)), ("vgg11", (64, 1, 3, 3))):
        network = build_network(resolve("seq-digits", "sgd", {"network": name})[0], stream)
        assert tuple(next(network.parameters()).shape) == first


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A user's file with a stream, a method and a network."""
    file = tmp_path / "own_parts.py"
    file.write_text(
        "import torch\n"
        "from forgetless.methods import Method\n"
        "from forgetless.data.builders import from_tensors\n"
        "def network(classes, inputs):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, classes))\n"
        "y = torch.arange(4).repeat(20)\n"
        "stream = from_tensors((60 * y[:, None, None]).expand(80, 3, 3).to(torch.uint8), y, [2, 2])\n"
        "class Mine(Method):\n"
        "    def step(self, learner, batch):\n"
        "        logits = learner.network(learner.augment(batch.x))\n"
        "        loss = torch.nn.functional.cross_entropy(logits, batch.y)\n"
        "        learner.update(loss)\n"
        "        return loss.detach(), {'logits': logits.detach()}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    sys.modules.pop("own_parts", None)


def test_a_run_of_a_users_own_parts(user_module):
    given = {"network": "own_parts:network", "epochs": 2, "batch": 8, "replay": 8, "lr": 0.5}
    settings, _ = resolve("own_parts:stream", "own_parts:Mine", given)
    assert len(run(settings).accuracy_matrix) == 2


def test_the_checksum_of_user_code_follows_its_file(user_module, monkeypatch):
    names = ("own_parts:stream", "own_parts:Mine", "own_parts:network")
    settings = resolve(names[0], names[1], {"network": names[2]})[0]
    before = user_code(settings)
    with user_module.open("a") as file:
        file.write("# changed\n")
    assert user_code(settings) == before  # this process has imported the file as it was
    del sys.modules["own_parts"]
    after = user_code(settings)
    assert set(before) == set(after) == set(names)
    assert all(after[name] != before[name] for name in names)
    assert user_code(resolve("seq-digits", "er", {})[0]) == {}
    (user_module.parent / "own_package.py").write_text("from own_parts import Mine\n")
    elsewhere = resolve("seq-digits", "own_package:Mine", {})[0]
    assert user_code(elsewhere) == {"own_package:Mine": after["own_parts:Mine"]}  # of the file that defines it
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as in a notebook
    monkeypatch.setattr(sys.modules["__main__"], "own_stream", sys.modules["own_parts"].stream, raising=False)
    assert user_code(resolve("__main__:own_stream", "er", {})[0]) == {}


def build_own(monkeypatch, given=None, **part):
    """Build one part of a run that a user's object stands for."""
    monkeypatch.setattr(catalogue, "load", lambda kind, name: part[kind])
    monkeypatch.setattr("forgetless.experiments.settings.load", lambda kind, name: part[kind])
    settings = resolve("own:stream", "own:Method", {"network": "own:network", "order": 3, **(given or {})})[0]
    if "stream" in part:
        return build_stream(settings)
    return build_method(settings) if "method" in part else build_network(settings, small_stream())


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"stream": small_stream()}, "order is 3, but stream 'own:stream' takes none"),
        ({"stream": small_stream}, "order is 3, but stream 'own:stream' takes none"),
        ({"stream": lambda order: [order]}, "stream 'own:stream' returns a list; it must return a Stream"),
        ({"network": lambda classes: classes}, "network 'own:network' returns a int; it must return a Module"),
        ({"network": torch.nn.Linear(2, 2)}, "'own:network' is a Linear; it must be a function that returns one"),
        ({"network": lambda classes, depth: classes}, "'own:network' is called with classes: missing a .*'depth'"),
        ({"method": print}, "method 'own:Method' is not a subclass of forgetless.methods.Method"),
    ],
)
def test_a_users_part_that_does_not_fit_is_refused(part, message, monkeypatch):
    with pytest.raises(ValueError, match=message):
        build_own(monkeypatch, **part)


@dataclass
class Own(SGD):
    strong: bool = setting(False, "or not")
    times: int = setting(1, "how often")


@dataclass
class Clashing(SGD):
    threshold: float = setting(0.5, "of its own")


def test_settings_of_a_users_method_are_checked(monkeypatch):
    assert build_own(monkeypatch, {"strong": True, "times": 3}, method=Own) == Own(True, 3)
    for given, message in (
        ({"strong": "no"}, "strong is 'no'; it must be true or false"),
        ({"times": 1.5}, "times is 1.5; it must be a whole number"),
        ({"times": True}, "times is True; it must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            build_own(monkeypatch, given, method=Own)
    with pytest.raises(ValueError, match="own:Method has a setting 'threshold', as every run has: give it another"):
        build_own(monkeypatch, method=Clashing)


def test_a_method_that_cannot_be_built_says_why(tmp_path, monkeypatch):
    (tmp_path / "half.py").write_text(
        "from dataclasses import dataclass\nfrom forgetless.methods import Method\n"
        "from forgetless.methods.er import ER\n"
        "@dataclass\nclass Needs(ER):\n    strength: float\n"
        "class Stepless(Method):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="half:Needs cannot be made: .*'strength'"):
        build_method(resolve("seq-digits", "half:Needs", {})[0])
    with pytest.raises(ValueError, match="half:Stepless cannot be made: .*step"):
        build_method(resolve("seq-digits", "half:Stepless", {})[0])

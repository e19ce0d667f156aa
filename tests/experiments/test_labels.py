"""Labels show only what differs between runs."""

from forgetless.experiments.labels import describe, labels
from forgetless.experiments.settings import resolve


def labels_of(*runs):
    settings = [resolve(stream, method, given)[0] for stream, method, given in runs]
    return [labels(settings)[run.id] for run in settings]


def test_a_label_shows_what_differs_from_runs_of_the_same_method():
    assert labels_of(
        ("seq-digits", "er", {"buffer": 100, "seed": 0}),
        ("seq-digits", "er", {"buffer": 200, "seed": 1, "freeze": ["fc1", "fc2"]}),
        ("seq-digits", "er", {"buffer": 100, "repair": "fpf"}),
        ("seq-digits", "derpp", {"alpha": 0.1}),
        ("seq-digits", "derpp", {"alpha": 0.2}),
    ) == [
        "er, buffer 100, seed 0",
        "er, buffer 200, freeze fc1,fc2, seed 1",
        "fpf+er",
        "derpp, alpha 0.1",
        "derpp, alpha 0.2",
    ]


def test_streams_are_named_if_there_are_several():
    assert labels_of(("seq-digits", "sgd", {}), ("seq-mnist", "er", {})) == [
        "sgd, stream seq-digits",
        "er, stream seq-mnist",
    ]


def test_a_switch_has_no_value_and_zero_is_shown():
    values = {"anytime": True, "validation": False, "order": None, "freeze": [], "kd": 0.0}
    assert describe("er", values, values) == "er, anytime, kd 0.0"

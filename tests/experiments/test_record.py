import json

import hypothesis
import pytest
from hypothesis import strategies as st

from forgetless.experiments import record
from forgetless.experiments.run import run
from forgetless.experiments.settings import Settings, resolve


@pytest.fixture(scope="module")
def made():
    settings, sources = resolve("seq-digits", "er", {"epochs": 1, "repair": "k-fpf", "every": 40, "steps": 5})
    return run(settings, sources)


def test_a_record_comes_back_as_it_was_written(made, tmp_path):
    record.write(made, tmp_path / "a" / "record.json")
    assert record.read(tmp_path / "a" / "record.json") == made
    assert [record.read(file) for file in record.files(tmp_path)] == [made]


def test_a_json_lines_file_holds_one_record_per_line(made, tmp_path):
    file = tmp_path / "column.jsonl"
    file.write_text(2 * f"{json.dumps(made.to_dict())}\n")
    assert record.read_lines(file) == [made, made]
    assert record.files(tmp_path) == record.files(file) == [file]
    assert record.read_files([file]) == ([(file, made), (file, made)], [])


def test_a_line_that_is_no_record_is_named(made, tmp_path):
    file = tmp_path / "column.jsonl"
    file.write_text(f"{json.dumps(made.to_dict())}\n{{}}\n")
    with pytest.raises(ValueError, match=r"column\.jsonl, line 2, is not a record: format None"):
        record.read_lines(file)


def test_nothing_is_left_beside_a_record(made, tmp_path):
    record.write(made, tmp_path / "record.json")
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_write_that_fails_leaves_the_old_record(made, tmp_path, monkeypatch):
    file = tmp_path / "record.json"
    record.write(made, file)
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        record.write(made, file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 99}', "null"])
def test_what_is_no_record_is_refused(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(ValueError, match=r"record\.json is not a record: "):
        record.read(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sensitivity": None}, "sensitivity is None"),
        ({"versions": None}, "versions is None"),
        ({"label": 3}, "label is 3"),
        ({"tensor_changes": []}, r"tensor_changes is \[\]"),
        ({"forgetting": "x"}, "must be real number, not str"),
        ({"forgetting": float("nan")}, "it has a number that is not finite"),
    ],
)
def test_a_field_of_another_type_is_refused(made, tmp_path, change, match):
    record.write_json(made.to_dict() | change, tmp_path / "record.json")
    with pytest.raises(ValueError, match=rf"record\.json is not a record: .*{match}"):
        record.read(tmp_path / "record.json")


def test_a_record_without_options_is_refused(made, tmp_path):
    settings = {name: value for name, value in made.settings.items() if name != "options"}
    record.write_json(made.to_dict() | {"settings": settings}, tmp_path / "record.json")
    with pytest.raises(ValueError, match="its settings have no options"):
        record.read(tmp_path / "record.json")


def test_a_record_holds_every_result(made):
    plain = json.loads(json.dumps(made.to_dict()))
    assert plain["label"] == "k-fpf-ce+er"
    assert len(plain["accuracy_matrix"]) == 5
    assert plain["accuracy"] == pytest.approx(sum(plain["accuracy_matrix"][-1]) / 5, abs=0.001)
    assert plain["anytime"][-1] == plain["accuracy"]
    assert set(plain["sensitivity"]) == {"fc1", "fc2", "fc3"}
    assert plain["chosen"]
    assert 0 < plain["share"] <= 1
    assert set(plain["flops"]) == {"train", "finetune"}
    assert set(plain["seconds"]) == {"train", "finetune", "evaluate", "total"}
    assert set(plain["versions"]) == {"forgetless", "torch", "numpy", "python"}
    assert [row[:2] for row in plain["task_changes"]] == [[2, 1], [3, 1], [4, 1], [5, 1]]
    assert [row[:2] for row in plain["epoch_changes"]] == [[t, 1] for t in range(1, 6)]
    assert plain["sources"]["every"] == "given"


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(data=st.data())
def test_a_damaged_record_is_refused_or_unchanged(records, data, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "damaged.json"
    text = json.dumps(records[0].to_dict()).encode()
    damaged = bytearray(text)
    if data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    else:
        del damaged[data.draw(st.integers(0, len(text) - 1)) :]
    file.write_bytes(damaged)
    try:
        record.read(file)
    except ValueError as error:
        assert "damaged.json is not a record" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["settings"].update(lr=0.9), "its settings belong to the run"),
        (lambda v: v.update(accuracy="86.6"), "must be real number, not str"),
        (lambda v: v.update(accuracy=float("nan")), "it has a number that is not finite"),
        (lambda v: v.update(accuracy_matrix=[], anytime=[]), "it must have accuracies after every task"),
        (lambda v: v.update(anytime=v["anytime"][:1]), "it must have accuracies after every task"),
        (lambda v: v.update(seconds={}), "'total' is missing"),
        (lambda v: v["settings"].pop("stream"), "stream is None; it must be a word"),
    ],
)
def test_a_record_changed_by_hand_is_refused(change, said, records, tmp_path):
    values = json.loads(json.dumps(records[0].to_dict()))
    change(values)
    file = tmp_path / "record.json"
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"record.json is not a record: .*{said}"):
        record.read(file)


def test_a_record_of_another_run_is_refused(records, tmp_path):
    settings = Settings.from_dict(records[0].settings)
    record.write(records[-1], record.path(tmp_path, settings))
    with pytest.raises(ValueError, match=f"is the record of another run, {records[-1].id}"):
        record.read_run(tmp_path, settings)
    assert record.find(tmp_path, settings) is None

import dataclasses
import os
import re
from types import SimpleNamespace

import pytest

from forgetless.config import catalogue
from forgetless.paper import ablations, dynamics, reproduce, studies, tables
from forgetless.paper.ablations import GroupsPoint, SchedulePoint
from forgetless.paper.published import targets
from forgetless.paper.reproduce import Line, Measured, Options
from forgetless.paper.studies import ITEMS


def test_every_number_of_the_paper_has_an_item():
    compared = {line.target for item in ITEMS.values() for line in item.lines(Options())} - {None}
    assert {target for target in targets() if not target.table.endswith("-authors")} == compared


@pytest.mark.parametrize("name", ITEMS)
def test_every_line_runs_what_its_target_says(name):
    lines = ITEMS[name].lines(Options(seeds=1, device="cuda"))
    for line in lines:
        settings = line.runs[0].settings
        assert settings.device == "cuda"
        target = line.target
        if target is None:
            assert name in {**dynamics.ITEMS, **ablations.ITEMS}
            continue
        assert settings.label == target.label
        assert (settings.stream, settings.network, settings.epochs) == (target.stream, target.network, target.epochs)
        assert target.buffer in (None, settings.buffer)
        assert settings.freeze == ((target.freeze,) if target.freeze else ())


@pytest.mark.parametrize("name", ITEMS)
def test_every_item_has_a_quick_version(name):
    options = Options(quick=True)
    lines = ITEMS[name].lines(options)
    assert all(line.stream in (reproduce.QUICK, dynamics.LARGE_DIGITS) for line in lines)
    assert max(entry.settings.seed for line in lines for entry in line.runs) <= 1
    assert "quick: " in studies.notes(options, lines)[0]


def test_options_select_rows_columns_and_buffers():
    lines = ITEMS["table1"].lines(Options("seq-cifar10", 500, ("k-fpf-ce",)))
    assert [(line.name, line.target.mean, len(line.runs)) for line in lines] == [("k-fpf-ce, buffer 500", 64.35, 5)]
    quick = ITEMS["mlp-vgg"].lines(Options("seq-mnist", quick=True, rows=("er", "fpf+er")))
    assert [(line.name, line.target.mean, len(line.runs)) for line in quick] == [
        ("er, buffer 500", 86.73, 2), ("fpf+er, buffer 500", 91.15, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("table1", Options("seq-cifar"), "table1 has no column named 'seq-cifar'; did you mean 'seq-cifar10'"),
        ("table1", Options(rows=("mir",)), "table1 has no row named 'mir'; known: joint, sgd"),
        ("table1", Options(buffer=300, rows=("er",)), "has no rows er with buffer 300; .* with buffer 200, 500"),
        ("k-tau", Options("my:stream"), "stream is 'my:stream'; for k-tau it must be one of"),
        ("dynamics", Options("seq-digit", quick=True), "no stream named 'seq-digit'"),
    ],
)
def test_selecting_nothing_is_an_error(name, options, match):
    with pytest.raises(ValueError, match=match):
        ITEMS[name].lines(options)


def test_fpf_all_has_the_set_up_of_the_paper():
    lines = ITEMS["fpf-all"].lines(Options("seq-pathmnist", seeds=1, rows=("k-fpf-all-ce", "fpf+er")))
    k_fpf, fpf = lines[0].runs[0].settings, lines[2].runs[0].settings
    often, once = k_fpf.finetune, fpf.finetune
    assert (often.steps, often.every, often.groups) == (100, 2816, "all")  # of 14,075 steps: four times and at the end
    assert (once.steps, once.every) == (100, None)
    (line, *_) = ITEMS["fpf-all"].lines(Options("seq-pacs", rows=("fpf+er",)))
    threshold = line.runs[0].settings.finetune.threshold
    assert threshold == 1.0  # the paper's, not the 0.1 of the search, which chooses all groups


def line(name, point=None):
    return Line(name, reproduce.plan_runs("seq-digits", "er", {}, Options(seeds=1)), point=point)


def with_accuracy(record, *values, **changes):
    return tuple(dataclasses.replace(record, accuracy=value, **changes) for value in values)


def test_findings_judge_gains_of_fpf_and_cost(records):
    cheap, dear = {"train": 10}, {"train": 100}
    measured = [
        Measured(line("er"), with_accuracy(records[0], 60.0, flops=dear)),
        Measured(line("fpf+er"), with_accuracy(records[0], 66.0, flops=dear)),
        Measured(line("der"), with_accuracy(records[0], 70.0, flops=dear)),
        Measured(line("fpf+der"), with_accuracy(records[0], 69.0, flops=dear)),
        Measured(line("k-fpf-ce"), with_accuracy(records[0], 71.0, flops=cheap)),
    ]
    improves, pays = tables.judge_improvement(measured)
    assert not improves.holds
    assert improves.numbers == "er +6.0, der -1.0"
    assert pays.holds


def test_findings_of_the_dynamics_follow_from_the_changes(records):
    changes = [[t, e, {"fc1": 0.4 / e, "fc3": 0.9 / e}] for t in (1, 2, 3) for e in (1, 2)]
    record = dataclasses.replace(
        records[0], epoch_changes=changes, boundaries=[2], sensitivity={"fc1": 0.6, "fc3": 1.4}
    )
    switches, detection, ranking = dynamics.judge_group_dynamics([Measured(line("SGD"), (record,))])
    assert switches.holds
    assert switches.numbers == "fc1 2.0 ×, fc3 2.0 ×"
    assert not detection.holds
    assert detection.numbers == "detected 1 of 2, false alarms 0"
    assert ranking.holds
    domain = dataclasses.replace(record, settings={**record.settings, "stream": "seq-pacs"})
    *_, ranking = dynamics.judge_group_dynamics([Measured(line("SGD"), (domain,))])
    assert not ranking.holds


@pytest.mark.parametrize(
    ("stream", "claims"),
    [
        ("seq-mnist", ["SGD: the last layer is the most sensitive trainable group"]),
        (dynamics.LARGE_DIGITS, ["SGD: the last layer is the most sensitive trainable group"]),
        ("rot-mnist", ["SGD: the last layer is not more sensitive than the first (domain-IL)"]),
        (
            "forgetless.data.benchmarks:rot_mnist",
            ["SGD: the last layer is not more sensitive than the first (domain-IL)"],
        ),
        ("own:domains", []),
    ],
)
def test_the_last_layer_is_judged_by_the_scenario(stream, claims, records):
    settings = {**records[0].settings, "stream": stream}
    record = dataclasses.replace(records[0], sensitivity={"fc1": 0.6, "fc3": 1.4}, settings=settings)
    measured = dynamics.judge_group_dynamics([Measured(line("SGD"), (record,))])
    assert [entry.claim for entry in measured if "last layer" in entry.claim] == claims


def test_one_task_has_no_findings_between_tasks(records):
    changes = [[1, epoch, {"fc1": 0.4, "fc3": 0.9}] for epoch in (1, 2)]
    single = {"epoch_changes": changes, "task_changes": [], "sensitivity": {"fc1": None, "fc3": None}, "boundaries": []}
    record = dataclasses.replace(records[0], tensor_changes={"bn1.weight": [], "block1.0.bn1.weight": []}, **single)
    measured = [Measured(line("SGD"), (record,))]
    assert [*dynamics.judge_group_dynamics(measured), *dynamics.judge_bn_dynamics(measured)] == []
    assert list(dynamics.draw_group_dynamics(measured)) == ["sgd-epochs"]
    assert dynamics.draw_bn_dynamics(measured) == {}


def test_k_tau_plans_k_finetunings():
    lines = studies.ITEMS["k-tau"].lines(Options("seq-pathmnist", seeds=1))
    times = {line.point.k: 14_075 // line.point.every + 1 for line in lines}  # its records have 14,075 steps
    assert times == {k: k for k in (2, 5, 9, 21, 41, 121)}


def test_quick_freezing_uses_the_groups_of_the_network():
    lines = studies.ITEMS["freeze"].lines(Options("seq-organamnist", quick=True))
    frozen = {entry.settings.freeze for each in lines for entry in each.runs}
    assert frozen == {(), ("block1",), ("block2",), ("block3",), ("block4",), ("fc",)}


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("parameters", {("fc1",), ("fc2",), ("fc3",), ("fc2", "fc3"), ("fc1", "fc3"), "all"}),
        ("freeze", {(), ("fc1",), ("fc2",), ("fc3",)}),
        ("buffer-epochs", {None, ("fc3",)}),
    ],
)
def test_a_users_stream_has_the_groups_of_the_mlp(name, groups):
    lines = studies.ITEMS[name].lines(Options("own:stream", quick=True))
    settings = [run.settings for line in lines for run in line.runs]
    assert {entry.network for entry in settings} == {"mlp"}
    assert {
        entry.freeze if name == "freeze" else entry.finetune and entry.finetune.groups for entry in settings
    } == groups


def test_stages_of_batch_norm_follow_from_the_names(records):
    changes = {
        "conv1.weight": [9.0], "bn1.weight": [0.4], "bn1.bias": [0.2], "bn1.running_mean": [7.0],
        "block1.0.bn1.weight": [0.1], "block1.0.shortcut.1.weight": [0.5], "block1.0.shortcut.0.weight": [5.0],
    }  # fmt: skip
    record = dataclasses.replace(records[0], tensor_changes=changes)
    assert dynamics.bn_stages(record) == {"bn1": [pytest.approx(0.3)], "block1": [pytest.approx(0.3)]}


def test_findings_of_k_and_tau(records):
    values = {(2, 10): 50.0, (2, 30): 60.0, (9, 10): 70.0, (9, 30): 71.0, (41, 10): 72.0, (41, 30): 73.0}
    measured = [
        Measured(
            line(f"{k}-{s}", SchedulePoint(k, 100 // k, s)),
            with_accuracy(records[0], value, flops={"train": 10 + k * s}),
        )
        for (k, s), value in values.items()
    ]
    few, saturates, many = ablations.judge_k_tau(measured)
    assert few.holds
    assert few.numbers == "k = 2: 60.0 %, k = 9: 71.0 %, k = 41: 73.0 %"
    assert saturates.numbers == "70.0 → 71.0 %"
    assert saturates.holds
    assert many.holds
    star = ablations.draw_k_tau(measured)["k-tau"].axes[0].lines[-1].get_xydata().tolist()
    assert star == [[pytest.approx((10 + 41 * 30) / 1e12), 73.0]]  # 72 is not within a point of the best


def test_findings_of_finetuned_groups(records):
    values = {"FC1": (50.0, 0.5), "FC2": (55.0, 0.2), "FC3": (70.0, 0.01), "ALL": (69.0, 1.0)}

    def choices(kind, values):
        return [
            Measured(line(name, GroupsPoint(kind, name)), with_accuracy(records[2], value, share=share))
            for name, (value, share) in values.items()
        ]

    measured = choices("k-FPF", values)
    part, head = ablations.judge_parameters(measured)
    assert part.holds
    assert part.numbers == "FC3 70.0 with 1.00% of them, ALL 69.0"
    assert head.holds
    assert head.numbers.startswith("15.0 points")
    (only,) = ablations.judge_parameters(measured[:-1])  # without ALL there is nothing to compare
    assert only.claim == head.claim
    # ALL beats every choice below a quarter of the parameters, and a larger choice beats batch norm.
    values = {"BN+FC": (60.0, 0.01), "Basis+Block4": (72.0, 0.75), "ALL": (71.0, 1.0)}
    part, best = ablations.judge_parameters(choices("FPF", values))
    assert (part.holds, part.numbers) == (False, "BN+FC 60.0 with 1.00% of them, ALL 71.0")
    assert (best.holds, best.numbers) == (False, "BN+FC 60.0, Basis+Block4 72.0")


def test_findings_of_freezing_name_significant_groups(records):
    values = {"": (60.0, 61.0, 62.0), "block1": (50.0, 51.0, 52.0), "block2": (58.0, 61.0, 61.0)}
    measured = [Measured(line("er", group), with_accuracy(records[0], *own)) for group, own in values.items()]
    any_, first = tables.judge_freezing(measured)
    assert any_.holds
    assert first.holds
    assert any_.numbers.endswith("block1 51.0, block2 60.0; by two standard errors or more: block1")


def test_findings_of_all_groups_count_the_finetunings(records):
    often = [{"step": 1}] * 5
    measured = [
        Measured(line("k-fpf-ce"), with_accuracy(records[0], 70.0, flops={"finetune": 3}, finetunings=often[:4])),
        Measured(line("k-fpf-all-ce"), with_accuracy(records[0], 69.0, flops={"finetune": 5}, finetunings=often)),
    ]
    (finding,) = tables.judge_all_groups(measured)
    assert finding.holds
    assert finding.claim == "k-fpf-ce is at least as accurate as k-fpf-all-ce on seq-digits, with fewer FLOPs"
    assert finding.numbers.endswith("; finetuned 4 and 5 times")


@pytest.mark.skipif("FORGETLESS_DATA" not in os.environ, reason="FORGETLESS_DATA is not set")
@pytest.mark.parametrize("name", [n for n in catalogue.STREAMS if n not in ("rot-mnist", "seq-tinyimagenet")])
def test_the_images_per_task_match_the_data(name):
    stream = catalogue.load("stream", name)()
    assert tuple(len(task.train) for task in stream.tasks) == reproduce.IMAGES[name]


def test_the_items_have_these_names_and_a_summary():
    assert list(ITEMS) == [
        "table1", "mlp-vgg", "fpf-all", "anytime", "many-epochs", "freeze", "dynamics", "bn-dynamics",
        "filter-dynamics", "parameters", "k-tau", "buffer-epochs", "flops-accuracy",
    ]  # fmt: skip
    assert all(re.match(r"\w", item.summary) for item in ITEMS.values())


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if not item.filters])
def test_an_item_with_failed_runs_still_has_findings(name, records):
    """With any line missing, and with one alone."""
    lines = ITEMS[name].lines(Options(quick=True))
    norms = {f"{stage}.bn1.weight": [1.0 / i, 1.0 / i] for i, stage in enumerate(("conv1", "block1", "block2"), 1)}
    record = dataclasses.replace(records[0], share=0.5, tensor_changes=norms)
    measured = [
        Measured(line, (dataclasses.replace(record, accuracy=50.0 + i, settings=line.runs[0].settings.to_dict()),))
        for i, line in enumerate(lines)
    ]
    whole = list(ITEMS[name].judge(measured))
    assert whole
    for missing in range(len(measured)):
        left = measured[:missing] + measured[missing + 1 :]
        assert len(list(ITEMS[name].judge(left))) <= len(whole)
        list(ITEMS[name].judge([measured[missing]]))
    assert ITEMS[name].draw(measured[:1]) is not None


def test_findings_of_filters_match_hand_computed_values():
    filters = {
        "conv1": {"within": [1.0, 1.0, 1.0, 1.0], "across": [1.0, 1.0, 1.5, 9.0]},  # median 1.25; one beyond twice that
        "conv2": {"within": [0.1, 0.1, 0.1, 0.1], "across": [0.3, 0.3, 0.3, 0.1]},  # three of four beyond twice within
    }
    record = SimpleNamespace(records=[SimpleNamespace(details={"filters": filters})])
    bottom, tail, jumps = dynamics.judge_filter_dynamics([record])
    assert (bottom.holds, tail.holds, jumps.holds) == (True, False, False)
    assert bottom.numbers == "medians: conv1 1.2, conv2 0.3"
    assert tail.numbers == "conv1 25%, conv2 0%"
    assert jumps.numbers == "conv1 25%, conv2 75%"

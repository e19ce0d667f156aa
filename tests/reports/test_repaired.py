"""The page about the repair of a finished model."""

import re

from forgetless.reports.repaired import html, verdict

SUMMARY = {
    "model": "ViT<small>",
    "files": {"before": None, "after": "updated", "examples": "images"},
    "loss_before": 2.0,
    "loss_after": 0.5,
    "accuracy_before": 0.4,
    "accuracy_after": 0.925,
    "held_out": 40,
    "groups": [
        {"name": "stem", "score": -0.25, "parameters": 12_000, "share": 0.96, "repaired": False},
        {"name": "norm.stats", "score": None, "parameters": 0, "share": 0.0, "repaired": False},
        {"name": "head", "score": 1.5, "parameters": 500, "share": 0.04, "repaired": True},
    ],
    "classes": [{"name": "cat", "label": 0, "examples": 5, "before": 0.2, "after": 1.0}],
    "examples": 320,
    "optimizer": "sgd",
    "lr": 0.1 / 3,
    "steps": 60,
    "tried": 100,
    "seconds": 75.0,
    "versions": {"forgetless": "0.21.0", "torch": "2.9"},
}


def cells(page):
    rows = re.findall(r"<tr>(<td.*?)</tr>", page)
    return [re.findall(r'<td data-v="(.*?)">(.*?)</td>', row) for row in rows]


def test_the_verdict_names_what_changed():
    assert verdict(SUMMARY) == (
        "The repair of 1 of 3 groups (4 % of the parameters) lowered the held-out loss from 2.000 to 0.500; the "
        "accuracy went from 40 % to 92.5 %."
    )
    assert verdict({**SUMMARY, "accuracy_before": None, "accuracy_after": None}).endswith("from 2.000 to 0.500.")
    assert "so the weights are unchanged" in verdict({**SUMMARY, "steps": 0})


def test_the_mean_overlap_is_stated_where_pixels_have_labels():
    images = {**SUMMARY, "overlap_before": 0.25, "overlap_after": 0.5}
    assert verdict(images).endswith("from 40 % to 92.5 %; the mean IoU went from 25 % to 50 %.")
    assert "held-out mean IoU<b>50 %</b><span>before: 25 %</span>" in html(images)
    assert "without lowering the mean IoU, so" in verdict({**images, "steps": 0})


def test_the_page_lists_groups_and_classes_with_values_to_sort_by():
    page = html(SUMMARY)
    assert cells(page) == [
        [("stem", "stem"), ("-0.25", "-0.25"), ("12000", "12 k"), ("0.96", "96 %"), ("0", "")],
        [("norm.stats", "norm.stats"), ("", "–"), ("0", "0"), ("0.0", "0 %"), ("0", "")],
        [("head", "head"), ("1.5", "1.5"), ("500", "500"), ("0.04", "4 %"), ("1", "yes")],
        [("cat", "cat"), ("5", "5"), ("0.2", "20 %"), ("1.0", "100 %")],
    ]
    assert "<title>Repair of ViT&lt;small&gt;</title>" in page
    assert "after updated, examples images; forgetless 0.21.0, torch 2.9" in page
    assert "sgd, rate 0.033, 60 steps kept of 100" in page
    assert "1 min 15 s" in page


def test_the_page_needs_no_other_file():
    assert not re.findall(r"<(?:link|img|script src)|https?://", html(SUMMARY))

import dataclasses
import re
import shutil

import pytest

from forgetless.experiments.record import path, write
from forgetless.experiments.settings import Settings
from forgetless.reports import page
from forgetless.reports.rows import table_rows


def test_the_page_is_complete_and_self_contained(records):
    text = page.html(records, "A <title>", {records[0].id: "runs/a b&c/record.json"})
    assert "A &lt;title&gt;" in text
    matrices = 2  # joint has one row only
    rows = 3
    assert len(re.findall("<svg", text)) == 4 + matrices + rows
    assert text.count("<svg") == text.count("</svg>")
    assert not re.findall("src=", text)
    assert not re.findall(r"url\(|@import|<link", text)
    links = re.findall('href="([^"]*)"', text)
    papers = [link for link in links if link.startswith("http")]
    assert papers
    assert all(link.startswith(("https://arxiv.org/abs/", "https://doi.org/")) for link in papers)
    assert [link for link in links if not link.startswith(("#", "http"))] == ["runs/a b&amp;c/record.json"]
    for link in links:
        assert not link.startswith("#") or f'id="{link[1:]}"' in text
    for row in table_rows(records):
        assert f"{row.accuracy:.1f}" in text
        assert all(record.id in text for record in row.records)


def test_text_from_records_is_escaped(records):
    evil = "<script>alert(1)</script>"
    settings = {**records[0].settings, "buffer": evil, "seed": evil, "network": evil, "stream": evil, "method": evil}
    changes = [[evil, 1, {evil: 0.1}], [evil, 2, {evil: 0.2}], [2, 1, {evil: 0.3}]]
    record = dataclasses.replace(
        records[0], settings=settings, label=evil, device=evil, versions={evil: evil}, sensitivity={evil: 1.0},
        epoch_changes=changes, id=evil,
    )  # fmt: skip
    assert evil not in page.html([record], evil, {evil: f'x" onclick="{evil}'})


def test_every_stream_has_a_section(records):
    other = [dataclasses.replace(r, settings={**r.settings, "stream": "my:stream"}) for r in records[:2]]
    text = page.html([*records, *other], "Two")
    assert '<a href="#s0">seq-digits</a> · <a href="#s1">my:stream</a>' in text
    assert '<h1 id="s1">my:stream</h1>' in text
    assert text.count("<table>") == 2


def test_only_ten_rows_have_labels(records):
    many = [
        dataclasses.replace(records[0], settings={**records[0].settings, "lr": float(i)}, accuracy=float(i))
        for i in range(30)
    ]
    text = page.html(many, "Many")
    assert " 10 of 30 rows have labels." in text
    table, charts = text.split("<tbody>")[1].split("</tbody>")
    assert table.count(" faint") == 20
    assert charts.count("<g><title>sgd, lr") == 2 * 10
    assert (text.count("<figure>"), text.count("<figure data-row=")) == (4, 24)
    assert text.count("<input") == 1
    assert "<input" not in page.html(many[:10], "Few")
    assert "mean over seeds. Of the 24 best rows." in text
    assert "best rows" not in page.html(many[:24], "Fewer")


def test_the_verdict_is_two_sentences_and_a_list():
    assert page._verdict(["A.", "B 5 %.", "C.", "D."]) == "<p>A. B 5&nbsp;%.</p><ul><li>C.</li><li>D.</li></ul>"
    assert page._verdict(["A."]) == "<p>A.</p>"


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_the_page_works_in_a_browser_on_a_phone(records, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    links = {}
    for record in records:
        file = path(tmp_path, Settings.from_dict(record.settings))
        write(record, file)
        links[record.id] = file.relative_to(tmp_path).as_posix()
    (tmp_path / "page.html").write_text(page.html(records, "Digits", links), encoding="utf-8")
    by_accuracy = [row.label for row in sorted(table_rows(records), key=lambda row: -row.accuracy)]
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 390, "height": 800})
        errors = []
        view.on("pageerror", lambda error: errors.append(str(error)))
        view.goto((tmp_path / "page.html").as_uri())
        names = "[...document.querySelectorAll('td:first-child')].map(cell => cell.textContent)"
        view.focus("th:nth-child(2) button")
        view.keyboard.press("Enter")
        assert view.evaluate(names) == by_accuracy
        view.keyboard.press("Space")
        assert view.evaluate(names) == by_accuracy[::-1]
        assert view.get_attribute("th:nth-child(2)", "aria-sort") == "ascending"
        assert view.evaluate("document.documentElement.scrollWidth") <= 390
        view.hover(".series path >> nth=0")
        assert "%" in view.inner_text("#tip")
        view.hover("tbody tr >> nth=1")
        lit = "[...document.querySelectorAll('.lit')].map(part => part.dataset.row)"
        assert view.evaluate(lit)[1:] == view.evaluate(lit)[:1] * 3  # the row, two charts and a matrix
        view.click("td:nth-child(2) a >> nth=0")  # opens the settings
        view.click(f"dd a >> text={records[0].accuracy:.2f}")
        assert records[0].id in view.url
        many = [dataclasses.replace(records[0], settings={**records[0].settings, "lr": float(i)}) for i in range(11)]
        (tmp_path / "page.html").write_text(page.html(many, "Many"), encoding="utf-8")
        view.goto((tmp_path / "page.html").as_uri())
        view.fill("input", "SGD 7.0")
        shown = "[...document.querySelectorAll('[data-row]:not(.out)')].map(part => part.dataset.row)"
        assert set(view.evaluate(shown)) == {"sgd, lr 7.0"}
        assert not errors
        browser.close()


def test_the_profile_draws_the_thresholds_of_its_rows(records):
    changed = [
        dataclasses.replace(r, settings={**r.settings, "threshold": 0.5}) for r in records if r.label == "fpf+er"
    ]
    pages = page.html([*records[:1], *changed], "t", {}), page.html(records[:1], "t", {})
    assert [re.findall("FPF: [0-9.]+", text) for text in pages] == [["FPF: 0.5"], ["FPF: 0.3", "FPF: 1"]]


def test_repairs_within_a_budget_have_no_threshold(records):
    tuned = [
        dataclasses.replace(r, settings={**r.settings, "threshold": None, "budget": 0.8})
        for r in records
        if r.label == "fpf+er"
    ]
    text = page.html([*records[:1], *tuned], "t", {})
    assert "Repairs within a budget do not depend on it." in text
    assert not re.findall("FPF: [0-9.]+", text)

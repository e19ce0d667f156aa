"""``forgetless report``: tables, pages and the records it skips."""

import json
import subprocess
import sys

from calls import QUICK, forgetless, leave


def test_a_report_is_written_without_torch(tmp_path):
    for method in ("er", "sgd"):
        forgetless("run", "seq-digits", method, *QUICK, "--json", cwd=tmp_path)
    code = (
        "import sys\nfrom forgetless.cli.app import app\n"
        "app(['report', 'runs', '--out', 'page.html', '--table', 'table.csv', '--figures', 'figures', '--formats', "
        "'svg'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "page: page.html" in done.stdout
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "figures" / "cost.svg").exists()
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert sorted(line.split(",")[1] for line in lines) == ["er", "method", "sgd"]
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "record.json").write_text("{}")
    skipped = forgetless("report", "runs", cwd=tmp_path)
    assert "skipped: runs/torn/record.json is not a record: format None, this version reads 1" in skipped.stderr
    assert (
        "error: there is no record in nowhere; records are <folder>/<id>/record.json or .jsonl"
        in forgetless("report", "runs", "nowhere", cwd=tmp_path, expect=2).stderr
    )
    again = forgetless(
        "report", "runs", "--figures", "f", "--formats", "gif", "--out", "new/page.html", cwd=tmp_path, expect=2
    )
    assert "formats has 'gif'; expected png, svg, pdf" in again.stderr
    assert not (tmp_path / "new").exists()


def test_records_of_another_version_are_named(tmp_path):
    for seed in ("0", "1"):
        forgetless("run", "seq-digits", "sgd", *QUICK, "--seed", seed, "--json", cwd=tmp_path)
    file = sorted(tmp_path.glob("runs/*/record.json"))[0]
    made = json.loads(file.read_text())
    made["versions"]["forgetless"] = "0.1.0"
    file.write_text(json.dumps(made))
    seed = str(made["settings"]["seed"])
    again = forgetless("run", "seq-digits", "sgd", *QUICK, "--seed", seed, cwd=tmp_path)
    assert "this run is finished (version 0.1.0); --force repeats it" in again.stderr
    assert "sgd: its records come from the versions 0.1.0, " in forgetless("report", "runs", cwd=tmp_path).stderr


def test_the_first_record_of_the_same_settings_counts(records, tmp_path):
    name = leave(records[0], tmp_path / "one", 0, accuracy=70.0)
    about = {"seconds": {"total": 9.0}, "versions": {"forgetless": "0.1.0"}, "sources": {"lr": "given"}}
    leave(records[0], tmp_path / "copy", 0, accuracy=70.0, **about)
    leave(records[0], tmp_path / "other", 0, accuracy=50.0)
    alike = forgetless("report", "one", "copy", cwd=tmp_path)
    assert "skipped" not in alike.stderr
    done = forgetless("report", "one", "other", "--table", "table.csv", cwd=tmp_path)
    files = [f"{folder}/{name}/record.json" for folder in ("other", "one")]
    assert f"skipped: {files[0]} has other numbers than {files[1]}, the record of the same settings\n" in done.stderr
    assert (tmp_path / "table.csv").read_text().splitlines()[1].split(",")[2] == "70.0"


def test_folder_names_are_printed_and_linked_verbatim(tmp_path):
    out = "q[/a][bold]:smile: " + 30 * "long" + "/a%20b#c?d"
    done = forgetless("run", "seq-digits", "sgd", *QUICK, "--out", out, cwd=tmp_path)
    (record,) = tmp_path.glob("**/record.json")
    assert f"record: {out}/{record.parent.name}/record.json\n" in done.stdout
    done = forgetless("report", out, "--out", f"{out}/page.html", "--table", f"{out}/table.csv", cwd=tmp_path)
    assert f"page: {out}/page.html\ntable: {out}/table.csv\n" in done.stdout
    page = (tmp_path / out / "page.html").read_text()
    assert f'href="{record.parent.name}/record.json"' in page
    forgetless("report", out, "--out", "page.html", cwd=tmp_path)
    assert f'long/a%2520b%23c%3Fd/{record.parent.name}/record.json"' in (tmp_path / "page.html").read_text()

"""``forgetless resume``: interrupted runs, by id or folder."""

import json
import re
import signal
import subprocess

from calls import COMMAND, forgetless, leave

from helpers import LIMIT, wait_until


def test_an_interrupted_run_resumes_from_its_checkpoint(tmp_path):
    call = ["run", "seq-digits", "derpp", "--k-fpf", "--steps", "20", "--epochs", "4"]
    often = ["--checkpoint-steps", "10"]
    given = call

    def written():
        return {file: file.stat().st_mtime_ns for file in tmp_path.glob("runs/*/checkpoint.safetensors")}

    for number in (signal.SIGINT, signal.SIGTERM):
        before = written()
        process = subprocess.Popen([*COMMAND, *given, *often], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        wait_until(lambda before=before: written() != before, of=process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 130, errors
        assert "interrupted; the same command resumes" in errors
        (file,) = tmp_path.rglob("runs/*/*")
        assert file.name == "checkpoint.safetensors"
        given = ["resume", str(file.parent)]
    resumed = forgetless("resume", file.parent.name, cwd=tmp_path)
    assert re.search(r"^resuming at task \d, step [\d,]+0$", resumed.stderr, re.M)
    assert not file.exists()
    (tmp_path / "alone").mkdir()
    forgetless(*call, cwd=tmp_path / "alone")
    resumed, alone = (
        json.loads(next(folder.glob("runs/*/record.json")).read_text()) for folder in (tmp_path, tmp_path / "alone")
    )
    assert {**resumed, "seconds": 0} == {**alone, "seconds": 0}
    again = forgetless("resume", file.parent, "--json", cwd=tmp_path)
    assert "this run is finished: " in again.stderr
    assert json.loads(again.stdout)["id"] == file.parent.name


def test_a_run_is_found_by_its_id(records, tmp_path):
    name = leave(records[0], tmp_path / "runs", 0)
    for given in (name, name[:3], f"runs/{name}"):
        done = forgetless("resume", given, "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["id"] == name
    elsewhere = forgetless("resume", name[:3], "--out", "runs", "--json", "-q", cwd=tmp_path)
    assert elsewhere.stderr == ""
    wrong = ("0" if name[-1] != "0" else "1") + name[1:]
    said = forgetless("resume", wrong, cwd=tmp_path, expect=2).stderr
    assert said == f"error: no run named {wrong!r} in runs; did you mean {name!r}?\n"
    said = forgetless("resume", "nowhere", cwd=tmp_path, expect=2).stderr
    assert said == f"error: no run named 'nowhere' in runs; there are {name}\n"
    said = forgetless("resume", name, "--out", "empty", cwd=tmp_path, expect=2).stderr
    assert said == f"error: no run named {name!r} in empty; it has no runs\n"


def test_an_ambiguous_id_is_refused(tmp_path):
    for name in ("ab12ab12ab12", "ab34ab34ab34"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "checkpoint.safetensors").touch()
    said = forgetless("resume", "ab", cwd=tmp_path, expect=2).stderr
    assert said == "error: 2 runs in runs begin with 'ab': ab12ab12ab12, ab34ab34ab34\n"

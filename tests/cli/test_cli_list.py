"""``forgetless list`` and ``forgetless data``."""

import json
import re

import pytest
from calls import forgetless

from forgetless.config.catalogue import TABLES


def test_data_is_listed_and_checked(tmp_path):
    empty = {"FORGETLESS_DATA": str(tmp_path)}
    assert "mnist" in forgetless("data", "list", cwd=tmp_path, **empty).stdout
    (tmp_path / "organamnist.npz").write_bytes(b"broken")
    done = forgetless("data", "check", cwd=tmp_path, expect=1, **empty)
    assert "organamnist.npz is corrupt" in done.stdout
    assert "pathmnist" not in done.stdout


def test_data_sizes_have_units(tmp_path):
    listed = forgetless("data", "list", cwd=tmp_path).stdout
    assert re.search(r"cifar10 +photographs of 10 classes, 60,000 of 32×32 +170 MB +", listed)


def test_the_list_names_everything(tmp_path):
    listed = forgetless("list", cwd=tmp_path).stdout
    assert re.search(r"derpp +dark experience replay with labels \(Buzzega et al. 2020\)", listed)
    assert "`forgetless list NAME` shows one of them with its settings.\n" in listed
    everything = json.loads(forgetless("list", "--json", cwd=tmp_path).stdout)
    assert [entry["name"] for entry in everything] == [name for table in TABLES.values() for name in table]
    assert everything[0] == {
        "kind": "stream",
        "name": "seq-digits",
        "summary": TABLES["stream"]["seq-digits"].summary,
        "path": "forgetless.data.benchmarks:seq_digits",
    }


def test_a_method_is_shown_with_its_settings(tmp_path):
    shown = forgetless("list", "derpp", cwd=tmp_path).stdout
    assert shown.startswith("derpp: dark experience replay with labels (Buzzega et al. 2020)\n\nDER++ (Buzzega")
    assert "L = CE(batch) + α · MSE(f(x'), z') + β · CE(f(x''), y'')" in shown
    assert "kind: method\npath: forgetless.methods.derpp:DERpp\npaper: Buzzega et al. 2020\n" in shown
    assert re.search(r"--beta +0\.5 +a finite number of 0 or more +Weight β of the loss on the stored labels\.", shown)
    assert shown.endswith("example: forgetless run seq-digits derpp --fpf\n")
    assert "This method has no settings of its own.\n" in forgetless("list", "er", cwd=tmp_path).stdout


def test_an_entry_is_shown_as_json(tmp_path):
    values = json.loads(forgetless("list", "derpp", "--json", cwd=tmp_path).stdout)
    assert values["settings"][0] == {
        "name": "alpha",
        "default": 0.1,
        "range": "a finite number of 0 or more",
        "help": "Weight α of the distance to the stored logits.",
    }


def test_a_stream_is_shown_with_what_a_run_starts_from(tmp_path):
    shown = forgetless("list", "seq-mnist", cwd=tmp_path, FORGETLESS_DATA=str(tmp_path)).stdout
    assert (
        f"data: mnist, 12 MB; seq-mnist needs the data set mnist, which is not in {tmp_path}: run `forgetless" in shown
    )
    assert re.search(r"--lr +0\.03 +a finite number above 0 +Learning rate\.", shown)
    assert "example: forgetless run seq-mnist er --fpf\n" in shown


def test_a_network_is_shown_with_its_size(tmp_path):
    shown = forgetless("list", "resnet18", cwd=tmp_path).stdout
    assert "paper: He et al. 2016\nsize: 11.2 M parameters with 10 classes\n" in shown


@pytest.mark.parametrize("name", [name for table in TABLES.values() for name in table])
def test_every_name_has_details(name, tmp_path):
    values = json.loads(forgetless("list", name, "--json", cwd=tmp_path).stdout)
    words = values["example"].split()[2:]
    assert name in words
    assert values["description"]


def test_an_unknown_name_gets_a_hint(tmp_path):
    done = forgetless("list", "derp", cwd=tmp_path, expect=2)
    assert done.stderr.startswith("error: no stream, method or network named 'derp'; did you mean 'derpp'? known: seq-")

"""``forgetless repair`` from checkpoint to report, for your own network and for a Hugging Face folder."""

import json
import math
import shutil

import numpy
import pytest
import torch
from calls import forgetless
from safetensors.torch import load_file, save_file

from finished import accuracy, blobs, forgetful, network

NETWORK = """
from torch import nn

def network():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6))

def sized(inputs, outputs=6):
    return nn.Linear(inputs, outputs)

def text():
    return "a network"

number = 3
"""
INPUTS = ["--before", "before.pt", "--after", "after.pt", "--examples", "examples.npz", "--out", "repaired"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "mine.py").write_text(NETWORK)
    model, before = forgetful()
    torch.save(before, folder / "before.pt")
    torch.save(model.state_dict(), folder / "after.pt")
    x, y = blobs(100, seed=5)
    numpy.savez(folder / "examples.npz", x=x.double().numpy(), y=y.numpy())
    save_file({"x": x, "y": torch.zeros_like(y)}, folder / "one-class.safetensors")
    save_file({"x": x[:0], "y": y[:0]}, folder / "empty.safetensors")
    save_file({"x": x[:6].clone(), "y": y[:6].clone()}, folder / "few.safetensors")
    save_file({"x": x}, folder / "unlabelled.safetensors")
    save_file({"x": x[:, :5].clone(), "y": y}, folder / "narrow.safetensors")
    save_file({"x": x, "y": y + 4}, folder / "labels.safetensors")
    save_file({"x": x, "id": y.clone(), "y": y}, folder / "numbered.safetensors")
    numpy.savez(folder / "images.npz", images=x.numpy(), labels=y.numpy())
    torch.save({"0.weight": torch.zeros(3, 8)}, folder / "other.pt")
    return folder


def call(folder, *options, expect=0):
    """Call ``forgetless repair`` with the usual inputs, of which ``options`` replaces some."""
    replaced = dict(zip(options[::2], options[1::2], strict=True))
    words = {"--model": "mine:network", **dict(zip(INPUTS[::2], INPUTS[1::2], strict=True)), **replaced}
    given = [word for pair in words.items() if pair[1] is not None for word in pair]
    return forgetless("repair", *given, cwd=folder, expect=expect)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--after", "gone.pt"], "after is 'gone.pt', which does not exist"),
        (["--before", "gone.pt"], "before is 'gone.pt', which does not exist"),
        (["--examples", "gone"], "examples is 'gone', which does not exist"),
        (["--out", "mine.py"], "out is 'mine.py', a file; it must be a folder"),
        (["--out", "."], "out is '.', which holds files; name another folder, or add --force to write into it"),
        (["--examples", ".", "--out", "."], "out is '.', which is also --examples; it must be another folder"),
        (["--model", None], "after is 'after.pt', which is not a Hugging Face folder (it has no config.json), so"),
        (["--model", "network"], "model is 'network'; it must be package.module:object"),
        (["--model", "their:network"], "model 'their:network': no module named 'their'"),
        (["--model", "mine:netwrk"], "model 'mine:netwrk': mine has no 'netwrk'; did you mean 'network'?"),
        (["--model", "mine:sized"], "model 'mine:sized' is called without arguments, but: missing a required"),
        (["--model", "mine:number"], "model 'mine:number' is a int; it must be a class, a function or a network"),
        (["--model", "mine:text"], "model 'mine:text' returned a str; it must return a torch.nn.Module"),
        (["--device", "gpu"], "device is 'gpu'; it must be cpu, cuda"),
        (["--after", "other.pt"], "after is of another architecture than Sequential: 0.weight has shape (3, 8)"),
        (["--before", "other.pt"], "before is of another architecture than Sequential: 0.weight has shape (3, 8)"),
        (["--before", "after.pt"], "before holds the network's present weights; it must hold those from before"),
        (["--examples", "mine.py"], "examples is 'mine.py'; for a network of your own it must be a folder of images"),
        (["--examples", "empty.safetensors"], "examples is empty; a repair needs examples of the old and of the new"),
        (["--examples", "one-class.safetensors"], "examples has only the class 0"),
        (["--examples", "unlabelled.safetensors"], "examples has the columns x, but no labels"),
        (["--examples", "narrow.safetensors"], "examples do not fit Sequential (one has x (5,))"),
        (
            ["--examples", "numbered.safetensors"],
            "examples has the columns id, x besides the labels, but Sequential takes input; name each column as the "
            "argument that it is, and leave out the others",
        ),
        (["--examples", "few.safetensors"], "examples has 6 labelled examples; a repair needs at least 16"),
        (["--examples", "labels.safetensors"], "y holds labels from 4 to 9; the network has 6 outputs"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(checkpoints, options, message):
    done = call(checkpoints, *options, expect=2)
    assert f"error: {message}" in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert not (checkpoints / "repaired").exists()


@pytest.mark.parametrize("name", ["after", "before"])
def test_a_folder_with_only_an_adapter_is_refused(checkpoints, name):
    (checkpoints / "adapter").mkdir(exist_ok=True)
    (checkpoints / "adapter" / "adapter_config.json").write_text("{}")
    assert call(checkpoints, f"--{name}", "adapter", "--model", None, expect=2).stderr == (
        f"error: {name} is 'adapter', which holds only an adapter (adapter_config.json and no config.json); merge it "
        "with model.merge_and_unload().save_pretrained(folder), and give that folder\n"
    )


def test_your_own_network_is_repaired_from_files(checkpoints):
    out = checkpoints / "repaired"
    done = call(checkpoints)
    assert done.stderr == "repairing Sequential on 100 examples\n"
    assert done.stdout.splitlines()[0].startswith("held-out loss ")
    assert done.stdout.endswith("weights: repaired\npage: repaired/report.html\n")
    after, weights = network(), load_file(out / "model.safetensors")
    after.load_state_dict(torch.load(checkpoints / "after.pt"))
    assert (accuracy(after, old=True), accuracy(after, old=False)) == (0, 1)
    after.load_state_dict(weights)
    assert accuracy(after, old=True) > 0.9
    assert accuracy(after, old=False) > 0.9

    report = json.loads((out / "report.json").read_text())
    assert report["files"] == {"before": "before.pt", "after": "after.pt", "examples": "examples.npz"}
    assert (report["examples"], report["held_out"], len(report["classes"])) == (100, 13, 6)
    assert report["loss_after"] < report["loss_before"]
    assert [group["name"] for group in report["groups"]] == ["stem", "block1", "head"]
    page = (out / "report.html").read_text()
    assert "Repair of Sequential" in page
    assert "The repair of" in page
    before = (out / "report.json").stat().st_mtime_ns
    assert "which holds files" in call(checkpoints, expect=2).stderr
    assert (out / "report.json").stat().st_mtime_ns == before
    shutil.rmtree(out)


def test_a_sole_column_besides_the_labels_is_the_input(checkpoints):
    done = call(checkpoints, "--examples", "images.npz", "--out", "repaired-images", "--steps", "20")
    assert "(13 of 100 examples held out)" in done.stdout


def test_images_in_folders_are_scaled_and_labelled_by_name(tmp_path):
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\nnetwork = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))\n"
    )
    for name, value in (("dark", 20), ("light", 230)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            grey = numpy.full((5, 4, 3), value + number, dtype=numpy.uint8)
            images.fromarray(grey).save(tmp_path / "images" / name / f"{number}.png")
    torch.save({"1.weight": torch.zeros(2, 12), "1.bias": torch.zeros(2)}, tmp_path / "after.pt")
    words = ["repair", "--model", "mine:network", "--after", "after.pt", "--examples", "images", "--out", "out"]
    sizes = forgetless(*words, cwd=tmp_path, expect=2)
    assert "examples has images of 3×5×4, which do not fit Sequential" in sizes.stderr
    done = forgetless(*words, "--size", "2", "--steps", "40", "--quiet", cwd=tmp_path)
    assert "accuracy 66.7 % → 100.0 %" in done.stdout
    assert "page:" not in done.stdout
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert weights["1.weight"][1].sum() > weights["1.weight"][0].sum()  # light is class 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [line["name"] for line in report["classes"]] == ["dark", "light"]
    (tmp_path / "images" / "other").mkdir()
    third = forgetless(*words, "--size", "2", "--force", cwd=tmp_path, expect=2)
    assert "examples has 3 folders of classes; the network has 2 outputs, so there must be a folder for" in third.stderr


def test_a_hugging_face_folder_is_repaired_to_a_folder(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    import folders
    from forgetless.integrations.pretrained import Pretrained

    folders.draw_images(tmp_path / "images", per_class=12)
    model = folders.named_vit()
    folders.save_vit(model, tmp_path / "new")
    folders.train(model, Pretrained(tmp_path / "new").read_examples(tmp_path / "images"), 15)
    folders.save_vit(model, tmp_path / "before")
    with torch.no_grad():
        model.classifier.bias.add_(torch.tensor([0.0, 0.0, 9.0]))  # everything is blue now
    folders.save_vit(model, tmp_path / "after")
    words = ["repair", "--before", "before", "--after", "after", "--examples", "images", "--out", "repaired"]
    given = forgetless(*words, "--model", "mine:network", cwd=tmp_path, expect=2)
    assert "model is 'mine:network', but the Hugging Face folder 'after' defines it; leave it out" in given.stderr
    done = forgetless(*words, "--steps", "100", cwd=tmp_path)
    assert done.stderr == "repairing ViTForImageClassification on 36 examples\n"
    files = {file.name for file in (tmp_path / "repaired").iterdir()}
    assert files == {"config.json", "model.safetensors", "preprocessor_config.json", "report.json", "report.html"}
    report = json.loads((tmp_path / "repaired" / "report.json").read_text())
    assert [line["name"] for line in report["classes"]] == ["red", "green", "blue"]
    assert [group["name"] for group in report["groups"] if group["repaired"]] == ["head"]  # nothing else had moved
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("after", "repaired"))
    assert {name for name in old if not torch.equal(old[name], new[name])} == {"classifier.weight", "classifier.bias"}


def test_a_language_model_is_repaired_on_lines_of_text(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import AutoModelForCausalLM

    import folders

    model = folders.gpt()
    kinds = ("good", "bad", "dull", "fine")
    lines = [f"{start} {kind} {thing}" for start in ("the", "a") for kind in kinds for thing in ("film", "book")] * 3
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    folders.save_gpt(model, tmp_path / "new")
    tokens = folders.tokenizer(eos_token="[SEP]", pad_token="[PAD]")(lines, padding=True, return_tensors="pt")
    batch = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    folders.train(model, batch, 60)
    folders.save_gpt(model, tmp_path / "before")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.weight.add_(3 * torch.randn(64, 16))
    folders.save_gpt(model, tmp_path / "after")

    words = ["repair", "--before", "before", "--after", "after", "--examples", "lines.txt", "--out", "repaired"]
    done = forgetless(*words, "--steps", "80", cwd=tmp_path)
    report = json.loads((tmp_path / "repaired" / "report.json").read_text())
    assert report["accuracy_before"] is None
    assert report["perplexity_after"] == pytest.approx(math.exp(report["loss_after"]))
    assert report["loss_after"] < report["loss_before"]
    scores = {group["name"]: group["score"] for group in report["groups"]}
    assert list(scores) == ["embedding", "attention.0", "mlp.0", "attention.1", "mlp.1", "norm.affine", "head"]
    assert max(scores, key=scores.get) == "mlp.1"
    assert f"perplexity {report['perplexity_before']:.4g} → {report['perplexity_after']:.4g}" in done.stdout
    page = (tmp_path / "repaired" / "report.html").read_text()
    assert f"held-out perplexity<b>{report['perplexity_after']:.4g}</b>" in page
    repaired = AutoModelForCausalLM.from_pretrained(tmp_path / "repaired").eval()
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(0))
    held_out = {name: column[order[::8]] for name, column in batch.items()}
    with torch.no_grad():
        assert repaired(**held_out).loss.item() == pytest.approx(report["loss_after"], rel=1e-4)

    file = tmp_path / "before" / "tokenizer.json"
    file.write_text(file.read_text().replace('"film"', '"movie"'))
    other = forgetless(*words, "--force", cwd=tmp_path, expect=2)
    assert "before and after have different tokenizers: 2 tokens differ, such as 'movie'" in other.stderr

"""Models in Hugging Face folders: loaded, repaired on examples from files, and saved."""

import json

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("transformers", reason="transformers is not installed")

import folders
import forgetless
from forgetless.integrations.pretrained import Pretrained


def rows(columns, keep):
    return {name: column[keep] for name, column in columns.items()}


@pytest.fixture
def images(tmp_path):
    folders.draw_images(tmp_path / "images")
    return tmp_path / "images"


def test_labels_of_image_folders_are_those_of_the_configuration(tmp_path, images):
    folders.save_vit(folders.named_vit(), tmp_path / "vit")
    columns = Pretrained(tmp_path / "vit").read_examples(images)
    assert columns["pixel_values"].shape == (24, 3, 8, 8)
    assert columns["labels"].tolist() == [2] * 8 + [1] * 8 + [0] * 8  # blue, green, red
    # The processor scales to [-1, 1]: the mean red of the red images is high, their mean blue low.
    assert columns["pixel_values"][16:, 0].mean() > 0.6
    assert columns["pixel_values"][16:, 2].mean() < -0.6


def test_labels_without_names_are_in_alphabetical_order(tmp_path, images):
    folders.save_vit(folders.vit(), tmp_path / "vit")
    assert Pretrained(tmp_path / "vit").read_examples(images)["labels"].unique_consecutive().tolist() == [0, 1, 2]
    folders.save_vit(folders.vit(outputs=5), tmp_path / "larger")
    with pytest.raises(ValueError, match="examples has 3 folders of classes; the model has 5 outputs without names"):
        Pretrained(tmp_path / "larger").read_examples(images)


def test_a_folder_that_is_no_label_is_refused(tmp_path, images):
    folders.save_vit(folders.named_vit(), tmp_path / "vit")
    (images / "red").rename(images / "rot")
    with pytest.raises(ValueError, match="examples has the label 'rot'; the model's are red, green, blue"):
        Pretrained(tmp_path / "vit").read_examples(images)


def test_repair_of_a_vit_recovers_forgotten_colours(tmp_path, images):
    model = folders.named_vit()
    folders.save_vit(model, tmp_path / "new")
    columns = Pretrained(tmp_path / "new").read_examples(images)
    old = columns["labels"] < 2
    before = folders.train(model, rows(columns, old), 15)
    folders.train(model, rows(columns, ~old), 30)
    folders.save_vit(model, tmp_path / "after")
    assert folders.accuracy(model, rows(columns, old)) == 0.5  # one of the two old colours is lost

    saved = Pretrained(tmp_path / "after")
    forgetless.repair(saved.model, columns, before, steps=40)
    assert folders.accuracy(saved.model, columns) > 0.9
    saved.save(tmp_path / "repaired")
    loaded = Pretrained(tmp_path / "repaired")
    assert folders.accuracy(loaded.model, columns) == folders.accuracy(saved.model, columns)
    for name in ("config.json", "preprocessor_config.json"):
        assert (tmp_path / "repaired" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()


def test_texts_are_tokenized_and_labelled(tmp_path):
    folders.save_bert(folders.bert(), tmp_path / "bert")
    folders.write_texts(tmp_path / "texts.csv")
    columns = Pretrained(tmp_path / "bert").read_examples(tmp_path / "texts.csv")
    assert columns["input_ids"][:3].tolist() == [[3, 7, 0, 0], [6, 7, 0, 0], [4, 7, 0, 0]]  # good, fine, bad film
    assert columns["labels"].tolist() == [1, 1, 0, 0] * 4
    lines = [json.dumps({"text": "good film", "label": "LABEL_1"}), json.dumps({"text": "bad film", "label": 0})]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    columns = Pretrained(tmp_path / "bert").read_examples(tmp_path / "texts.jsonl")
    assert (columns["input_ids"].tolist(), columns["labels"].tolist()) == ([[3, 7], [4, 7]], [1, 0])


def test_repair_of_a_bert_moves_only_the_group_that_moved(tmp_path):
    folders.save_bert(folders.bert(), tmp_path / "new")
    folders.write_texts(tmp_path / "texts.csv")
    columns = Pretrained(tmp_path / "new").read_examples(tmp_path / "texts.csv")
    model = folders.bert()
    before = folders.train(model, columns, 20)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([0.0, 9.0]))  # everything is good now
    assert folders.accuracy(model, columns) == 0.5
    report = forgetless.repair(model, columns, before, steps=40)
    assert folders.accuracy(model, columns) == 1
    assert report.repaired == ("head",)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"classifier.weight", "classifier.bias"}


def test_language_models_learn_the_next_token(tmp_path):
    folders.save_gpt(folders.gpt(), tmp_path / "gpt")
    (tmp_path / "lines.txt").write_text("the good film\n\nbad book\n")
    saved = Pretrained(tmp_path / "gpt")
    columns = saved.read_examples(tmp_path / "lines.txt")
    assert columns["input_ids"].tolist() == [[9, 3, 7], [4, 8, 2]]  # padded with the end of text
    assert columns["labels"].tolist() == [[9, 3, 7], [4, 8, -100]]
    assert saved.loss == "model"
    many = {name: column.repeat(10, 1) for name, column in columns.items()}
    report = forgetless.repair(saved.model, many, loss=saved.loss, steps=40)
    assert report.accuracy_before is None
    assert report.loss_after < report.loss_before / 2


def test_half_precision_is_repaired_in_float32_and_saved_as_it_was(tmp_path):
    model = folders.bert().to(torch.bfloat16)
    folders.save_bert(model, tmp_path / "after")
    saved = Pretrained(tmp_path / "after")
    assert {tensor.dtype for tensor in saved.model.parameters()} == {torch.float32}
    saved.save(tmp_path / "out")
    stored, written = (load_file(tmp_path / name / "model.safetensors") for name in ("after", "out"))
    assert stored.keys() == written.keys()
    assert all(torch.equal(stored[name], written[name]) for name in stored)


def test_earlier_weights_come_from_a_folder_or_a_file(tmp_path):
    folders.save_bert(folders.bert(), tmp_path / "after")
    saved = Pretrained(tmp_path / "after")
    torch.save(saved.model.state_dict(), tmp_path / "before.pt")
    for path in ("after", "before.pt"):
        weights = saved.weights(tmp_path / path)
        assert torch.equal(weights["classifier.weight"], saved.model.classifier.weight)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"architectures": ["BertForMaskedLM"]}', "whose architecture is BertForMaskedLM; it must end in ForImage"),
        ("{}", "whose architecture is none"),
        ("not json", "config.json cannot be read"),
        ('{"architectures": ["BertForSequenceClassification"], "model_type": "bert"}', "which cannot be loaded"),
    ],
)
def test_folders_that_cannot_be_loaded_are_refused(config, message, tmp_path):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match=message):
        Pretrained(tmp_path, "after")


def test_examples_of_the_wrong_kind_are_refused(tmp_path, images):
    folders.save_bert(folders.bert(), tmp_path / "bert")
    saved = Pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match=r"for BertForSequenceClassification it must be a .csv or .jsonl file"):
        saved.read_examples(images)
    (tmp_path / "texts.csv").write_text("text,label\ngood film,7\n")
    with pytest.raises(ValueError, match="examples has the label '7'; the model's are LABEL_0, LABEL_1"):
        saved.read_examples(tmp_path / "texts.csv")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    folders.bert().save_pretrained(tmp_path / "bert")
    folders.write_texts(tmp_path / "texts.csv")
    with pytest.raises(ValueError, match="after is .*bert', which has no tokenizer; save it there"):
        Pretrained(tmp_path / "bert").read_examples(tmp_path / "texts.csv")

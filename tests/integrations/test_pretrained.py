"""Models in Hugging Face folders: loaded, repaired on examples from files, and saved."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers", reason="transformers is not installed")

import folders
import forgetless
from forgetless.data.readers.files import DataError
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
    report = forgetless.repair(model, columns, before, steps=100)
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


def test_a_folder_with_a_missing_or_incomplete_shard_is_refused(tmp_path):
    folders.gpt().save_pretrained(tmp_path, max_shard_size="10KB")
    _, shard, *_ = sorted(tmp_path.glob("model-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])  # an interrupted copy
    with pytest.raises(ValueError, match="^after is .*, which cannot be loaded: Error while deserializing header"):
        Pretrained(tmp_path, "after")
    shard.unlink()
    with pytest.raises(ValueError, match=f"^after is .*, which cannot be loaded: .*{shard.name}"):
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


def test_language_models_read_lines_json_lines_and_token_ids(tmp_path):
    folders.save_gpt(folders.gpt(), tmp_path / "gpt")
    saved = Pretrained(tmp_path / "gpt")
    texts = ["the good film", "bad book"]
    (tmp_path / "lines.txt").write_text("\n".join(texts))
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "lines.csv").write_text("\n".join(["text", *texts]))
    expected = saved.read_examples(tmp_path / "lines.txt")
    ids = {name: expected[name] for name in ("input_ids", "attention_mask")}
    save_file(ids, tmp_path / "ids.safetensors")
    for name in ("lines.jsonl", "lines.csv", "ids.safetensors"):
        columns = saved.read_examples(tmp_path / name)
        assert {key: column.tolist() for key, column in columns.items() if key in expected} == {
            key: column.tolist() for key, column in expected.items()
        }
    save_file(ids | {"labels": ids["input_ids"] * 0 - 100}, tmp_path / "labelled.safetensors")
    assert saved.read_examples(tmp_path / "labelled.safetensors")["labels"].unique().tolist() == [-100]
    (tmp_path / "lines.jsonl").write_text('{"content": "the film"}')
    with pytest.raises(DataError, match="row 1 of .*lines.jsonl has no text; each needs text"):
        saved.read_examples(tmp_path / "lines.jsonl")


def test_another_tokenizer_in_before_is_refused(tmp_path):
    for name in ("before", "after"):
        folders.save_gpt(folders.gpt(), tmp_path / name)
    saved = Pretrained(tmp_path / "after")
    assert "transformer.wte.weight" in saved.weights(tmp_path / "before")
    file = tmp_path / "before" / "tokenizer.json"
    file.write_text(file.read_text().replace('"film"', '"movie"'))
    with pytest.raises(
        ValueError, match=r"different tokenizers: 2 tokens differ, such as 'movie' \(7 in before, missing in after\)"
    ):
        saved.weights(tmp_path / "before")
    for tokenizer_file in (tmp_path / "before").glob("tokenizer*"):
        tokenizer_file.unlink()
    assert "transformer.wte.weight" in saved.weights(tmp_path / "before")


def test_another_vocabulary_in_before_is_refused(tmp_path):
    model = folders.gpt()
    folders.save_gpt(model, tmp_path / "before")
    model.resize_token_embeddings(14, mean_resizing=False)
    folders.save_gpt(model, tmp_path / "after")
    with pytest.raises(ValueError, match="before has a vocabulary of 11 tokens and after one of 14.* leave before out"):
        Pretrained(tmp_path / "after").weights(tmp_path / "before")


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path):
    folders.save_gpt(folders.gpt(), tmp_path / "gpt")
    saved = Pretrained(tmp_path / "gpt")
    columns = {"input_ids": torch.randint(20, (20, 5)), "labels": torch.randint(20, (20, 5))}
    with pytest.raises(ValueError, match=r"has a vocabulary of 11, so they must be 0 to 10: the tokenizer is another"):
        forgetless.repair(saved.model, columns, loss=saved.loss)

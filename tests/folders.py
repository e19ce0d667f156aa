"""Hugging Face folders of tiny models with random weights, and examples for them, made without a download."""

import copy

import numpy
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}
LABELS = {"red": 0, "green": 1, "blue": 2}  # not in alphabetical order
WORDS = ["[PAD]", "[UNK]", "[SEP]", "good", "bad", "dull", "fine", "film", "book", "the", "a"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokenizer(**tokens):
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", **tokens)


def vit(outputs=3, **labels):
    torch.manual_seed(0)
    return ViTForImageClassification(
        ViTConfig(image_size=8, patch_size=4, num_labels=outputs, **SIZES, **NO_DROPOUT, **labels)
    )


def named_vit():
    return vit(label2id=LABELS, id2label={index: name for name, index in LABELS.items()})


def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), num_labels=2, **SIZES, **NO_DROPOUT))


def gpt():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_embd=16, n_layer=2, n_head=2, n_positions=32))


def save_vit(model, folder):
    model.save_pretrained(folder)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)


def save_bert(model, folder):
    model.save_pretrained(folder)
    tokenizer(pad_token="[PAD]").save_pretrained(folder)


def save_gpt(model, folder):
    model.save_pretrained(folder)
    tokenizer(eos_token="[SEP]").save_pretrained(folder)


def draw_images(folder, per_class=8):
    """Write noisy images of one colour each, in a folder per colour."""
    generator = numpy.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = numpy.clip(numpy.array(colour) + generator.normal(0, 60, (9, 10, 3)), 0, 255)
            Image.fromarray(pixels.astype(numpy.uint8)).save(folder / name / f"{number}.png")


def write_texts(file):
    lines = ["text,label"]
    for thing in ("film", "book", "the film", "a book"):
        lines += [f"good {thing},1", f"fine {thing},1", f"bad {thing},0", f'"dull, {thing}",0']
    file.write_text("\n".join(lines))


def train(model, batch, steps, lr=0.01):
    """Train a model on one batch, as a Hugging Face model computes its own loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return copy.deepcopy(model.state_dict())


@torch.no_grad()
def accuracy(model, batch):
    inputs = {name: column for name, column in batch.items() if name != "labels"}
    return (model.eval()(**inputs).logits.argmax(1) == batch["labels"]).float().mean().item()

"""Models in Hugging Face folders: load one, read examples as its tokenizer or image processor expects, save it.

    saved = Pretrained("after")
    before = saved.weights(Path("before"))
    forgetless.repair(saved.model, saved.read_examples(Path("images")), before, loss=saved.loss)
    saved.save(Path("repaired"))

Classifiers of images and of texts, and causal language models, are supported. Nothing is downloaded, and no code of
the folder is executed.
"""

import json
import shutil
from pathlib import Path
from typing import Any, final

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn

from forgetless.config.extras import load_extra
from forgetless.data.readers.examples import TENSOR_FILES, TEXT_FILES, image_files, read_lines, read_tensors, read_texts
from forgetless.data.readers.files import DataError
from forgetless.memory.batch import LABELS
from forgetless.memory.labels import NO_LABEL
from forgetless.repair.objective import Loss
from forgetless.repair.weights import read_weights

CONFIG = "config.json"
KINDS = {  # how the name of an architecture ends, and the class that loads it
    "ForImageClassification": "AutoModelForImageClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
}
COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken")  # of tokenizers, processors and configurations
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model")
LEFT_OUT = ("trainer_state.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")
LONGEST = 512  # tokens of an example; longer texts are cut


def is_pretrained(path: Path) -> bool:
    """Return whether ``path`` is a Hugging Face folder."""
    return (path / CONFIG).is_file()


@final
class Pretrained:
    """A model in a Hugging Face folder, in float32.

    Args:
        folder: The folder, with ``config.json`` and the weights.
        setting: What errors call the folder, such as ``after``.
    """

    def __init__(self, folder: Path | str, setting: str = "folder") -> None:
        self.folder = Path(folder)
        self.kind = _kind(self.folder, setting)
        loader = getattr(transformers, self.kind)
        try:
            model, report = loader.from_pretrained(self.folder, local_files_only=True, output_loading_info=True)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"{setting} is {str(folder)!r}, which cannot be loaded: {_first_line(error)}") from error
        if absent := sorted(report["missing_keys"]):
            raise ValueError(f"{setting} is {str(folder)!r}, whose weights lack {', '.join(absent[:3])}")
        self._dtype, self._config = model.dtype, model.config
        self.model: nn.Module = model.float()

    @property
    def loss(self) -> Loss | None:
        """The loss of a repair: a language model's own, otherwise cross-entropy (``None``)."""
        return "model" if self.kind == "AutoModelForCausalLM" else None

    @property
    def classes(self) -> list[str]:
        """The names of the classes; empty for a language model."""
        names: dict[int, str] = self._config.id2label
        return [] if self.loss is not None else [names[index] for index in sorted(names)]

    def weights(self, before: Path) -> dict[str, Tensor]:
        """Return the weights of an earlier version of the model, in a Hugging Face folder or a file."""
        if not is_pretrained(before):
            return read_weights(before, "before")
        earlier = Pretrained(before, "before")
        sizes = [getattr(saved._config, "vocab_size", None) for saved in (earlier, self)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"before has a vocabulary of {sizes[0]} tokens and after one of {sizes[1]}, so their weights cannot be "
                "compared; leave before out to repair without scores"
            )
        self._compare_tokenizers(before)
        return earlier.model.state_dict()

    def read_examples(self, path: Path) -> dict[str, Any]:
        """Return the columns of a file or folder of examples, prepared for this model.

        Args:
            path: Images in one folder per class; .csv or .jsonl with text and label; for a language model .txt with
                one text per line, or .csv or .jsonl with text; or .npz, .pt or .safetensors with the model's arguments
                and ``labels``, which are the ``input_ids`` of a language model if they are missing.
        """
        expected = {
            "AutoModelForImageClassification": "a folder of images with one folder per class",
            "AutoModelForSequenceClassification": "a .csv or .jsonl file with the columns text and label",
            "AutoModelForCausalLM": "a .txt file with one text per line, a .csv or .jsonl file with the column text",
        }[self.kind]
        if path.suffix in TENSOR_FILES:
            return self._labelled(dict(read_tensors(path)))
        if self.kind == "AutoModelForImageClassification" and path.is_dir():
            return self._images(path)
        if self.kind == "AutoModelForSequenceClassification" and path.suffix in TEXT_FILES:
            texts, labels = read_texts(path)
            return self._tokens(texts) | {"labels": torch.tensor([self._label(label) for label in labels])}
        if self.kind == "AutoModelForCausalLM" and path.suffix in (".txt", *TEXT_FILES):
            texts = read_lines(path) if path.suffix == ".txt" else read_texts(path, ["text"])[0]
            return self._labelled(self._tokens(texts))
        raise ValueError(
            f"examples is {str(path)!r}; for {type(self.model).__name__} it must be {expected}, or a file of tensors "
            f"({', '.join(TENSOR_FILES)})"
        )

    def save(self, folder: Path) -> None:
        """Write the model to a folder, with the configuration, tokenizer and processor of its own folder."""
        self.model.to(self._dtype)
        getattr(self.model, "save_pretrained")(folder)  # noqa: B009
        for file in sorted(self.folder.iterdir()):
            if file.is_file() and file.suffix in COPIED and file.name not in LEFT_OUT:
                shutil.copyfile(file, folder / file.name)

    def _labelled(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the columns with the labels of a causal language model: its tokens, apart from padding."""
        tokens = columns.get("input_ids")
        if self.kind != "AutoModelForCausalLM" or tokens is None or any(name in columns for name in LABELS):
            return columns
        mask = columns.get("attention_mask")
        return columns | {"labels": tokens if mask is None else tokens.masked_fill(mask == 0, NO_LABEL)}

    def _compare_tokenizers(self, before: Path) -> None:
        """Raise ``ValueError`` if the folder ``before`` has another tokenizer than this one; it may have none."""
        if not (_has_tokenizer(before) and _has_tokenizer(self.folder)):
            return
        earlier, now = (
            transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab()
            for folder in (before, self.folder)
        )
        if differing := [token for token in {**earlier, **now} if earlier.get(token) != now.get(token)]:
            token = differing[0]
            raise ValueError(
                f"before and after have different tokenizers: {len(differing)} tokens differ, such as {token!r} "
                f"({earlier.get(token, 'missing')} in before, {now.get(token, 'missing')} in after), so their weights "
                "cannot be compared; leave before out to repair without scores"
            )

    def _images(self, folder: Path) -> dict[str, Any]:
        """Return images as the folder's image processor prepares them."""
        Image = load_extra("PIL.Image", "images", "reading image files needs pillow")
        files, labels, classes = image_files(folder)
        ids = torch.tensor(self._class_ids(classes))
        processor = self._preparer("AutoImageProcessor", "image processor")
        rows = []
        for file in files:
            try:
                with Image.open(file) as image:
                    rows.append(processor(images=image.convert("RGB"), return_tensors="pt"))
            except (OSError, SyntaxError, Image.DecompressionBombError) as error:
                raise DataError(f"{file} is not readable as an image: {error}") from None
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]} | {"labels": ids[labels]}

    def _tokens(self, texts: list[str]) -> dict[str, Tensor]:
        """Return texts as the folder's tokenizer prepares them, padded to the longest."""
        if not texts:
            raise ValueError("examples is empty; a repair needs examples of the old and of the new data")
        if not _has_tokenizer(self.folder):
            # transformers 5 would return an empty tokenizer, for which every word is unknown.
            raise ValueError(f"after is {str(self.folder)!r}, which has no tokenizer; save it there as well")
        tokenizer = self._preparer("AutoTokenizer", "tokenizer")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        limits = (tokenizer.model_max_length, getattr(self._config, "max_position_embeddings", LONGEST), LONGEST)
        encoded = tokenizer(texts, padding=True, truncation=True, max_length=min(limits), return_tensors="pt")
        return dict(encoded)

    def _preparer(self, loader: str, what: str) -> Any:
        try:
            return getattr(transformers, loader).from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"after is {str(self.folder)!r}, which has no usable {what}: {_first_line(error)}"
            ) from error

    def _class_ids(self, classes: list[str]) -> list[int]:
        """Return the label of each class folder: by its name in the configuration, otherwise by alphabetical order."""
        known = self._config.label2id
        if all(name.startswith("LABEL_") for name in known) and not set(classes) & set(known):
            if len(classes) != len(known):
                raise ValueError(
                    f"examples has {len(classes)} folders of classes; the model has {len(known)} outputs without "
                    "names, so there must be a folder for each (it may be empty), in their alphabetical order"
                )
            return list(range(len(classes)))
        return [self._label(name) for name in classes]

    def _label(self, text: str) -> int:
        """Return the label of a name in the configuration, or of a number."""
        known: dict[str, int] = self._config.label2id
        if text in known:
            return int(known[text])
        if text.isdecimal() and int(text) < len(known):
            return int(text)
        names = ", ".join(sorted(known, key=lambda name: known[name])[:8])
        raise ValueError(f"examples has the label {text!r}; the model's are {names}{', …' if len(known) > 8 else ''}")


def _kind(folder: Path, setting: str) -> str:
    """Return the name of the class that loads the model of a folder."""
    try:
        architectures = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("architectures") or ["none"]
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise ValueError(f"{setting}: {folder / CONFIG} cannot be read: {error}") from None
    for ending, loader in KINDS.items():
        if architectures[0].endswith(ending):
            return loader
    raise ValueError(
        f"{setting} is {str(folder)!r}, whose architecture is {architectures[0]}; it must end in {', '.join(KINDS)}"
    )


def _has_tokenizer(folder: Path) -> bool:
    return any(file for pattern in TOKENIZER_FILES for file in folder.glob(pattern))


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

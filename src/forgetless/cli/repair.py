"""``forgetless repair``: repair a finished model from its checkpoint and a few examples."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import forgetless
from forgetless.cli.options import Quiet, flag
from forgetless.cli.output import print_line, print_note, print_remark
from forgetless.config.extras import load_extra
from forgetless.experiments.storage import check_folder, write_whole
from forgetless.reports import repaired

CONFIG = "config.json"  # of a Hugging Face folder
ADAPTER = "adapter_config.json"  # of what peft saves: an adapter without its model


def repair(
    after: Annotated[
        Path, typer.Option(metavar="B", help="The model to repair: a Hugging Face folder or a file of weights.")
    ],
    examples: Annotated[
        Path, typer.Option(metavar="E", help="A few labelled examples, old and new: a file or a folder of images.")
    ],
    out: Annotated[Path, typer.Option(metavar="C", help="Folder for the repaired weights and the report.")],
    before: Annotated[
        Path | None, typer.Option(metavar="A", help="The weights from before the update; they show what moved.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:object that returns the network; not for a Hugging Face folder.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="The most steps of a repair; trials come on top.")] = 300,
    size: Annotated[int | None, typer.Option(min=1, help="Resize the images to this many pixels.")] = None,
    device: Annotated[str, typer.Option(rich_help_panel="Execution", help="cpu, cuda, cuda:1, …")] = "cpu",
    force: Annotated[bool, flag("--force", "Output", "Write into --out although it holds files.")] = False,
    quiet: Quiet = False,
) -> None:
    """Repair a finished model: find what moved, repair it on a few examples, and write weights and a report."""
    _check_paths(before, after, examples, out, force=force)
    _check_model(model, size, after)
    from forgetless.compute.engine import find_device
    from forgetless.repair.finished import repair as repair_model

    place = find_device(device)
    saved = _load(after, model, size)
    earlier = None if before is None else saved.weights(before)
    columns = saved.read_examples(examples)
    saved.model.to(place)
    print_remark(f"repairing {type(saved.model).__name__} on {len(next(iter(columns.values()))):,} examples")
    report = repair_model(saved.model, columns, earlier, steps=steps, loss=saved.loss)
    summary = _summary(saved, report, {"before": before, "after": after, "examples": examples})
    check_folder(out)
    saved.save(out)
    write_whole(json.dumps(summary, indent=1).encode(), out / "report.json")
    write_whole(repaired.html(summary).encode(), out / "report.html")
    print_line(str(report))
    print_note(f"weights: {out}\npage: {out / 'report.html'}")


def _summary(saved: Any, report: Any, files: dict[str, Path | None]) -> dict[str, Any]:
    """Return the contents of ``report.json``: the report, with the names of files and classes."""
    import torch

    names = dict(enumerate(saved.classes))
    values = report.to_dict()
    classes = [{"name": names.get(line["label"], str(line["label"])), **line} for line in values["classes"]]
    return {
        "model": type(saved.model).__name__,
        "files": {name: None if path is None else str(path) for name, path in files.items()},
        **values,
        "classes": classes,
        "versions": {"forgetless": forgetless.__version__, "torch": torch.__version__},
    }


def _load(after: Path, model: str | None, size: int | None) -> Any:
    """Return the model to repair, with its weights."""
    if not _is_pretrained(after):
        from forgetless.repair.saved import SavedNetwork

        assert model is not None
        return SavedNetwork(model, after, size)
    purpose = f"after is the Hugging Face folder {str(after)!r}, which needs transformers"
    transformers = load_extra("transformers", "transformers", purpose)
    from forgetless.integrations.pretrained import Pretrained

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return Pretrained(after, "after")


def _is_pretrained(path: Path) -> bool:
    return (path / CONFIG).is_file()


def _check_paths(before: Path | None, after: Path, examples: Path, out: Path, *, force: bool) -> None:
    """Raise ``ValueError`` if an input is missing or an adapter alone, or if the output would replace something."""
    inputs = {"before": before, "after": after, "examples": examples}
    for name, path in inputs.items():
        if path is not None and not path.exists():
            raise ValueError(f"{name} is {str(path)!r}, which does not exist")
        if path is not None and path.resolve() == out.resolve():
            raise ValueError(f"out is {str(out)!r}, which is also --{name}; it must be another folder")
        if path is not None and (path / ADAPTER).is_file() and not _is_pretrained(path):
            raise ValueError(
                f"{name} is {str(path)!r}, which holds only an adapter ({ADAPTER} and no {CONFIG}); merge it with "
                "model.merge_and_unload().save_pretrained(folder), and give that folder"
            )
    if out.is_file():
        raise ValueError(f"out is {str(out)!r}, a file; it must be a folder")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise ValueError(
            f"out is {str(out)!r}, which holds files; name another folder, or add --force to write into it"
        )


def _check_model(model: str | None, size: int | None, after: Path) -> None:
    """Raise ``ValueError`` unless the network is given exactly once, by ``--model`` or by a Hugging Face folder."""
    if _is_pretrained(after):
        for name, value in (("model", model), ("size", size)):
            if value is not None:
                raise ValueError(
                    f"{name} is {value!r}, but the Hugging Face folder {str(after)!r} defines it; leave it out"
                )
    elif model is None:
        raise ValueError(
            f"after is {str(after)!r}, which is not a Hugging Face folder (it has no {CONFIG}), so --model must name "
            "the network: package.module:object, a class or function that returns it"
        )

"""What a stream needs on a machine: the files of its data set, and an optional package. Imports no torch."""

from importlib.util import find_spec

from forgetless.data.download import SOURCES
from forgetless.data.readers.files import data_folder

DATA_SETS = {
    "seq-mnist": "mnist", "rot-mnist": "mnist", "seq-organamnist": "organamnist", "seq-pathmnist": "pathmnist",
    "seq-cifar10": "cifar10", "seq-tinyimagenet": "tinyimagenet", "seq-pacs": "pacs",
}  # fmt: skip
PACKAGES = {  # the module that a stream imports, the package that has it, and the extra of forgetless that installs it
    "seq-digits": ("sklearn", "scikit-learn", "digits"),
    "view-digits": ("sklearn", "scikit-learn", "digits"),
    "seq-tinyimagenet": ("PIL", "pillow", "images"),
    "seq-pacs": ("PIL", "pillow", "images"),
}


def missing(stream: str) -> str:
    """Return what is missing for a stream and how to get it; empty if nothing is, and for a user's stream.

    The files are looked for, not read: ``forgetless data check`` finds corrupt ones.
    """
    if stream in PACKAGES:
        module, package, extra = PACKAGES[stream]
        if find_spec(module) is None:
            return f"{stream} needs {package}: pip install 'forgetless[{extra}]'"
    if stream not in DATA_SETS:
        return ""
    name, folder = DATA_SETS[stream], data_folder()
    paths = [folder / path for path in (*SOURCES[name].contents, *SOURCES[name].folders)]
    # MNIST may also lie there unpacked, without the ending .gz.
    if all(path.exists() or (path.suffix == ".gz" and path.with_suffix("").exists()) for path in paths):
        return ""
    source = SOURCES[name]
    how = source.by_hand or f"run `forgetless data get {name}`, or set FORGETLESS_DATA to its folder"
    return f"{stream} needs the data set {name}, which is not in {folder}: {how}"

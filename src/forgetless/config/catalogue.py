"""The names of streams, methods and networks, and where each is defined. Imports no torch.

The tables are frozen. A path to a user's own object, ``package.module:object``, is valid wherever a name is.
"""

import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

PRECISIONS = ("fp32", "tf32", "bf16")
POLICIES = ("reservoir", "balanced", "distinct")  # how a buffer samples


class Entry(NamedTuple):
    """A row of a table."""

    path: str  # module:object
    summary: str


def _table(entries: Mapping[str, tuple[str, str]]) -> Mapping[str, Entry]:
    return MappingProxyType({name: Entry(path, summary) for name, (path, summary) in entries.items()})


STREAMS = _table({
    "seq-digits": ("forgetless.data.benchmarks:seq_digits", "scikit-learn's 8×8 digits, 5 tasks × 2 classes; offline"),
    "view-digits": ("forgetless.data.benchmarks:view_digits", "those digits in 4 tasks, a view each (domain-IL)"),
    "seq-mnist": ("forgetless.data.benchmarks:seq_mnist", "MNIST, 5 tasks × 2 classes"),
    "rot-mnist": ("forgetless.data.benchmarks:rot_mnist", "MNIST, 20 tasks, each with its own rotation (domain-IL)"),
    "seq-organamnist": ("forgetless.data.benchmarks:seq_organamnist", "OrganAMNIST, 4 tasks of 3, 3, 3, 2 classes"),
    "seq-pathmnist": ("forgetless.data.benchmarks:seq_pathmnist", "PathMNIST, 4 tasks of 3, 2, 2, 2 classes"),
    "seq-cifar10": ("forgetless.data.benchmarks:seq_cifar10", "CIFAR-10, 5 tasks × 2 classes"),
    "seq-tinyimagenet": ("forgetless.data.benchmarks:seq_tinyimagenet", "Tiny-ImageNet, 10 tasks × 20 classes"),
    "seq-pacs": ("forgetless.data.benchmarks:seq_pacs", "PACS: sketch, cartoon, painting, photo, 224×224 (domain-IL)"),
})  # fmt: skip

METHODS = _table({
    "sgd": ("forgetless.methods.sgd:SGD", "plain training, the lower bound"),
    "joint": ("forgetless.methods.joint:Joint", "all tasks at once, the upper bound"),
    "oewc": ("forgetless.methods.oewc:OnlineEWC", "online elastic weight consolidation (Schwarz et al. 2018)"),
    "gdumb": ("forgetless.methods.gdumb:GDumb", "a network trained on a balanced memory alone (Prabhu et al. 2020)"),
    "er": ("forgetless.methods.er:ER", "experience replay with a reservoir (Riemer et al. 2019)"),
    "agem": ("forgetless.methods.agem:AGEM", "averaged gradient episodic memory (Chaudhry et al. 2019)"),
    "icarl": ("forgetless.methods.icarl:ICaRL", "herded exemplars, nearest mean (Rebuffi et al. 2017)"),
    "fdr": ("forgetless.methods.fdr:FDR", "function distance regularisation (Benjamin et al. 2019)"),
    "der": ("forgetless.methods.der:DER", "dark experience replay (Buzzega et al. 2020)"),
    "derpp": ("forgetless.methods.derpp:DERpp", "dark experience replay with labels (Buzzega et al. 2020)"),
    "mir": ("forgetless.methods.mir:MIR", "replay of what is maximally interfered with (Aljundi et al. 2019)"),
    "er_ace": ("forgetless.methods.er_ace:ERACE", "replay with asymmetric cross-entropy (Caccia et al. 2022)"),
    "cls_er": ("forgetless.methods.cls_er:CLSER", "replay with fast and slow averages of weights (Arani et al. 2022)"),
    "star": ("forgetless.methods.star:STAR", "DER++ with outputs stable around the weights (Eskandar et al. 2025)"),
    "si": ("forgetless.methods.si:SI", "synaptic intelligence (Zenke et al. 2017)"),
    "mas": ("forgetless.methods.mas:MAS", "memory aware synapses (Aljundi et al. 2018)"),
    "packnet": ("forgetless.methods.packnet:PackNet", "packing by pruning, for task-IL (Mallya & Lazebnik 2018)"),
    "hat": ("forgetless.methods.hat:HAT", "hard attention to the task, for task-IL (Serrà et al. 2018)"),
    "masked": ("forgetless.methods.masked:Masked", "plain training among the classes of the task (Zeno et al. 2018)"),
    "scr": ("forgetless.methods.scr:SCR", "contrastive replay, nearest class mean (Mai et al. 2021)"),
    "xder_rpc": ("forgetless.methods.xder_rpc:XDERRPC", "extended DER with a fixed classifier (Boschini et al. 2022)"),
})  # fmt: skip

NETWORKS = _table({
    "mlp": ("forgetless.networks:mlp", "100-100 hidden units"),
    "deep_mlp": ("forgetless.networks:deep_mlp", "200-200-200 hidden units"),
    "resnet18": ("forgetless.networks:resnet18", "for small images"),
    "resnet18_imagenet": ("forgetless.networks:resnet18_imagenet", "for images of about 224×224"),
    "vgg11": ("forgetless.networks:vgg11", "for small images, without batch norm"),
})  # fmt: skip

TABLES = MappingProxyType({"stream": STREAMS, "method": METHODS, "network": NETWORKS})


def nearest(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean …?" for an unknown name, or an empty text if no known name is similar."""
    similar = get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return the error message for a name that is not among the known ones."""
    names = list(known)
    hint = nearest(name, names)
    return f"no {what} named {name!r}{hint or ';'} known: {', '.join(names)}"


def check_name(kind: str, name: str) -> None:
    """Raise ``ValueError`` if ``name`` is neither in the table of this kind nor a path to an object."""
    table = TABLES.get(kind, {})
    if name not in table and not {".", ":"} & set(name):
        raise ValueError(f"{unknown(kind, name, table)}; or module:object")


def module_of(path: str) -> tuple[str, str]:
    """Return the module and the attribute of ``module:attribute`` or ``module.attribute``."""
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    return module, attribute


def find_modules_here() -> None:
    """Let ``load`` import modules from the working directory, as ``python -m`` does.

    A process calls this once, when it starts: the command line and the worker processes of a sweep do.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def load(kind: str, name: str) -> Any:
    """Return the object behind a name of a table or behind a path; errors say what is wrong with the name."""
    check_name(kind, name)
    table = TABLES.get(kind, {})
    module, attribute = module_of(table[name].path if name in table else name)
    if module.endswith(".py") or module.startswith("."):
        file = Path(module).with_suffix("")
        importable = file.name if file.is_absolute() or ".." in file.parts else ".".join(file.parts)
        raise ValueError(f"{kind} {name!r} is a file; it must be module:object, {importable}:{attribute}")
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{kind} {name!r}: no module named {module!r}") from None
        raise ImportError(f"{kind} {name!r}: {module} cannot be imported: {error}") from error
    except SyntaxError as error:
        raise ValueError(f"{kind} {name!r}: {error.msg} in line {error.lineno} of {error.filename}") from None
    try:
        return getattr(imported, attribute)
    except AttributeError:
        hint = nearest(attribute, vars(imported))
        raise ValueError(f"{kind} {name!r}: {module} has no {attribute!r}{hint}") from None

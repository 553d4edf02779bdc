"""The data sets of the GGEUR paper, from the layouts in which they are distributed.

Every loader takes ``path``, the folder that holds the set (default: ``datasets/<set>`` in torch's own cache folder, or
the Hugging Face cache), and ``download``. Without ``download`` nothing is fetched: a set that is not there raises
FedgeoError with the places looked at, what to fetch and where to put it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...common.errors import FedgeoError
from ..source import TEST, TRAIN, UNSET, Source
from .digits import digits
from .download import Part, file_part, from_hub, hub_folder, image_files, joined, missing, set_folder, unpack_from_hub
from .folders import ArrayImages, from_domain_folders, image_folder

# fmt: off
OFFICE_HOME_CLASSES = (
    "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar",
    "Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser",
    "Exit_Sign", "Fan", "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer", "Helmet",
    "Kettle", "Keyboard", "Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse", "Mug",
    "Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer", "Push_Pin", "Radio",
    "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda", "Speaker", "Spoon",
    "TV", "Table", "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam",
)
# fmt: on


@dataclass(frozen=True)
class _DomainSet:
    """A set in folders domain/class.

    domains: what a domain's folder may be called (lower case, letters and digits only) and the name that it gets.
    inside: folders in which the domains may lie. repository: the name on Hugging Face.
    """

    name: str
    domains: Mapping[str, str]
    classes: int
    inside: tuple[str, ...]
    fetch: str
    repository: str | None = None


_PACS = _DomainSet(
    "pacs",
    {"artpainting": "art_painting", "cartoon": "cartoon", "photo": "photo", "sketch": "sketch"},
    7,
    ("kfold", "PACS", "PACS/kfold"),
    "PACS (flwrlabs/pacs on Hugging Face, or the folder kfold of the original)",
    "flwrlabs/pacs",
)
_OFFICE_CALTECH = _DomainSet(
    "office_caltech",
    {"amazon": "amazon", "caltech": "caltech", "caltech10": "caltech", "dslr": "dslr", "webcam": "webcam"},
    10,
    ("office_caltech_10", "Office_Caltech_DA_Dataset"),
    "Office-Caltech-10 (the images, in folders amazon, caltech, dslr and webcam)",
)
_OFFICE_HOME = _DomainSet(
    "office_home",
    {"art": "Art", "clipart": "Clipart", "product": "Product", "realworld": "Real World"},
    65,
    ("OfficeHomeDataset_10072016", "Office-Home", "OfficeHome"),
    "Office-Home (flwrlabs/office-home on Hugging Face, or OfficeHomeDataset_10072016.zip, unpacked)",
    "flwrlabs/office-home",
)


def cifar10(path: Path | str | None = None, *, download: bool = False) -> Source:
    """CIFAR-10: ``cifar-10-batches-py`` as distributed, or train and test folders of images."""
    return _cifar("cifar10", "CIFAR10", path, download)


def cifar100(path: Path | str | None = None, *, download: bool = False) -> Source:
    """CIFAR-100 with its 100 fine classes: ``cifar-100-python`` as distributed, or train and test folders of images."""
    return _cifar("cifar100", "CIFAR100", path, download)


def _cifar(name: str, kind: str, path: Path | str | None, download: bool) -> Source:
    import torchvision.datasets

    folder = set_folder(path, name)
    if (folder / "train").is_dir():
        return _named(name, image_folder(folder))
    loader = getattr(torchvision.datasets, kind)
    root = folder.parent if folder.name == loader.base_folder else folder
    try:
        train, test = (loader(str(root), train=train, download=download) for train in (True, False))
    except (RuntimeError, OSError) as fault:
        raise missing(name, root, f"{loader.url} and unpack it", f"{loader.base_folder}/", fault=fault) from fault
    parts: list[Part] = [
        (ArrayImages(part.data, f"{name} {split}"), np.asarray(part.targets), value)
        for part, split, value in ((train, "train", TRAIN), (test, "test", TEST))
    ]
    return joined(name, train.classes, [name], parts, [0, 0])


def tiny_imagenet(path: Path | str | None = None, *, download: bool = False) -> Source:
    """Tiny-ImageNet: ``tiny-imagenet-200`` as distributed, or the parquet files of zh-plus/tiny-imagenet.

    Classes are the 200 WordNet ids, sorted. The official validation images are the test split; the official test
    images have no labels and are left out.
    """
    name = "tiny_imagenet"
    folder = set_folder(path, name)
    root = folder if (folder / "wnids.txt").is_file() else folder / "tiny-imagenet-200"
    if not (root / "wnids.txt").is_file():
        hub = hub_folder("zh-plus/tiny-imagenet", folder, path is None, download)
        if hub is None:
            fetch = "http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it"
            raise missing(name, folder, fetch, "tiny-imagenet-200/wnids.txt")
        return from_hub(name, hub, {"train": TRAIN, "valid": TEST})
    classes = sorted((root / "wnids.txt").read_text().split())
    at = {label: index for index, label in enumerate(classes)}
    train = [(file, at[label]) for label in classes for file in image_files(root / "train" / label / "images")]
    held_out = []
    for line in (root / "val" / "val_annotations.txt").read_text().splitlines():
        file, label = line.split("\t")[:2]
        if label not in at:
            raise FedgeoError(f"{root / 'val' / 'val_annotations.txt'}: {file} has class {label}, not in wnids.txt")
        held_out.append((root / "val" / "images" / file, at[label]))
    parts = [file_part(train, TRAIN), file_part(sorted(held_out), TEST)]
    return joined(name, classes, [name], parts, [0, 0])


def office_caltech(path: Path | str | None = None) -> Source:
    """Office-Caltech-10: folders amazon, caltech (or caltech10), dslr and webcam, each with ten class folders.

    It has no lasting source, so that there is no download.
    """
    return _domains(_OFFICE_CALTECH, path, download=False)


def pacs(path: Path | str | None = None, *, download: bool = False) -> Source:
    """PACS: kfold/<domain>/<class> as distributed, or the parquet files of flwrlabs/pacs."""
    return _domains(_PACS, path, download=download)


def office_home(path: Path | str | None = None, *, download: bool = False) -> Source:
    """Office-Home: OfficeHomeDataset_10072016 as distributed, or the parquet files of flwrlabs/office-home."""
    return _domains(_OFFICE_HOME, path, download=download)


def office_home_lds(
    path: Path | str | None = None, *, published: bool = False, beta: float = 0.1, download: bool = False
) -> Source:
    """Office-Home for the label and domain skew of the GGEUR paper.

    ``published=False``: all of Office-Home, to be split by the paper's coefficient matrix. ``published=True``: the
    split that the paper's authors published for ``beta`` 0.1, 0.5 or 0.05 (WeiDai-David/Office-Home-LDS on Hugging
    Face): a domain's ``client`` images are the training split, its ``test`` images the test split.
    """
    name = "office_home_lds"
    if not published:
        return _named(name, office_home(path, download=download))
    part = f"Office-Home-{beta:g}"
    folder = set_folder(path, name)
    inside = (part, f"new_dataset/{part}", f"{part}/{part}")
    found = _domain_folders(folder, _OFFICE_HOME.domains, inside)
    if not found and download:
        unpack_from_hub("WeiDai-David/Office-Home-LDS", f"new_dataset/{part}.zip", folder / part)
        found = _domain_folders(folder, _OFFICE_HOME.domains, inside)
    if not found:
        fetch = f"new_dataset/{part}.zip of WeiDai-David/Office-Home-LDS on Hugging Face and unpack it"
        raise missing(name, folder, fetch, f"{part}/Art/client/")
    parts, places = [], []
    for place, domain in enumerate(found.values()):
        for held, split in (("client", TRAIN), ("test", TEST)):
            parts.append(file_part([(file, _published_label(file)) for file in image_files(domain / held)], split))
            places.append(place)
    return joined(name, OFFICE_HOME_CLASSES, tuple(found), parts, places)


def _published_label(file: Path) -> int:
    match = re.fullmatch(r"class_(\d+)_index_\d+", file.stem)
    if match is None or int(match[1]) >= len(OFFICE_HOME_CLASSES):
        raise FedgeoError(f"{file}: expected a name like class_12_index_345.jpg with a class below 65")
    return int(match[1])


def _domains(wanted: _DomainSet, path: Path | str | None, *, download: bool) -> Source:
    name, domains, repository = wanted.name, wanted.domains, wanted.repository
    folder = set_folder(path, name)
    if found := _domain_folders(folder, domains, wanted.inside):
        source = from_domain_folders(name, found)
    else:
        hub = hub_folder(repository, folder, path is None, download) if repository else None
        if hub is None:
            layout = f"{next(iter(domains.values()))}/<class>/"
            raise missing(name, folder, wanted.fetch, layout, download=repository is not None)
        source = from_hub(name, hub, {"train": UNSET})
    expected = set(domains.values())
    if set(source.domains) != expected:
        raise FedgeoError(f"{name}: domains {sorted(source.domains)} in {folder}, expected {sorted(expected)}")
    if len(source.classes) != wanted.classes:
        raise FedgeoError(
            f"{name}: {len(source.classes)} classes in {folder}, expected {wanted.classes} "
            f"(found {', '.join(source.classes)}): use data=domain_folder for a part of the set or other classes"
        )
    return source


def _domain_folders(folder: Path, domains: Mapping[str, str], inside: Sequence[str]) -> dict[str, Path]:
    """The domains' folders by name, in ``folder`` or in the first of ``inside`` that holds one."""
    for root in (folder, *(folder / part for part in inside)):
        entries = sorted(root.iterdir()) if root.is_dir() else []
        keys = {re.sub("[^a-z0-9]", "", entry.name.lower()): entry for entry in entries if entry.is_dir()}
        if found := {domains[key]: keys[key] for key in domains if key in keys}:
            return found
    return {}


def _named(name: str, source: Source) -> Source:
    """The same source under the set's name, its one domain too."""
    domains = (name,) if len(source.domains) == 1 else source.domains
    return replace(source, name=name, domains=domains)


IMAGE_SETS: Mapping[str, Callable[..., Source]] = {
    loader.__name__: loader
    for loader in (cifar10, cifar100, tiny_imagenet, digits, office_caltech, pacs, office_home, office_home_lds)
}

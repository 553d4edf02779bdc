"""The distributed data sets of images, in their true formats."""

import bz2
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.common.errors import FedgeoError
from app.data.images import download, published
from app.data.source import TEST, TRAIN, UNSET
from tests.pictures import tree, write


def rows(source: object) -> list[tuple[int, int, int]]:
    return list(zip(source.domain.tolist(), source.labels.tolist(), source.split.tolist(), strict=True))  # type: ignore[attr-defined]


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR's files are checked by hash; the tiny ones made here cannot have it."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: Path(path).is_file())


def cifar_files(root: Path, kind: int) -> Path:
    folder = root / {10: "cifar-10-batches-py", 100: "cifar-100-python"}[kind]
    folder.mkdir()
    names = [f"data_batch_{at}" for at in range(1, 6)] + ["test_batch"] if kind == 10 else ["train", "test"]
    for at, name in enumerate(names):
        data = np.zeros((2, 3, 32, 32), np.uint8)
        data[:, 0] = at  # red, stored plane by plane
        labels = {"labels" if kind == 10 else "fine_labels": [at % 10, 9], "coarse_labels": [0, 0]}
        (folder / name).write_bytes(pickle.dumps({"data": data.reshape(2, -1), **labels}))
    meta = {"label_names": [f"c{at}" for at in range(10)]}
    if kind == 100:
        meta = {"fine_label_names": [f"f{at}" for at in range(100)]}
    (folder / ("batches.meta" if kind == 10 else "meta")).write_bytes(pickle.dumps(meta))
    return folder


def test_cifar_pickles(tmp_path: Path, unchecked: None) -> None:
    inside = cifar_files(tmp_path, 10)
    for path in (tmp_path, inside):
        source = published.cifar10(path)
        assert source.classes[3] == "c3" and source.domains == ("cifar10",)
        assert source.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
        assert source.split.tolist() == [TRAIN] * 10 + [TEST] * 2
        assert source.images[8].getpixel((5, 5)) == (4, 0, 0)
    cifar_files(tmp_path, 100)
    hundred = published.cifar100(tmp_path)
    assert len(hundred.classes) == 100 and hundred.labels.tolist() == [0, 9, 1, 9]


def test_cifar_files_that_are_damaged_are_refused(tmp_path: Path) -> None:
    cifar_files(tmp_path, 10)
    with pytest.raises(FedgeoError, match="cifar10: not found .*corrupted"):
        published.cifar10(tmp_path)


def test_tiny_imagenet_files(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    tree(root, "train/n02/images/n02_0.JPEG", "train/n01/images/n01_0.JPEG", "train/n01/images/n01_1.JPEG")
    tree(root / "val/images", "val_1.JPEG", "val_0.JPEG")
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    (root / "train/n01/n01_boxes.txt").write_text("boxes")
    for path in (tmp_path, root):
        source = published.tiny_imagenet(path)
        assert source.classes == ("n01", "n02")
        assert rows(source) == [(0, 0, TRAIN), (0, 0, TRAIN), (0, 1, TRAIN), (0, 1, TEST), (0, 0, TEST)]
        assert source.images.name(3).endswith("val_0.JPEG")
    (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t0\t9\t9\n")
    with pytest.raises(FedgeoError, match=r"val_0\.JPEG has class n03"):
        published.tiny_imagenet(tmp_path)


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def mnist_files(raw: Path) -> None:
    raw.mkdir(parents=True)
    for part, digits in (("train", [5, 0]), ("t10k", [7])):
        pixels = np.repeat(np.array(digits, np.uint8), 28 * 28).reshape(-1, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.array(digits, np.uint8)))


def usps_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, digits in (("usps.bz2", [6, 4]), ("usps.t.bz2", [9])):
        lines = [" ".join([str(d + 1), *(f"{at + 1}:{-1 if at else 1}" for at in range(256))]) for d in digits]
        (folder / name).write_bytes(bz2.compress("\n".join(lines).encode()))


def mat_files(folder: Path, pattern: str) -> None:
    from scipy.io import savemat

    folder.mkdir(parents=True)
    for part, labels in (("train", [10, 1, 9]), ("test", [2])):
        pixels = np.zeros((32, 32, 3, len(labels)), np.uint8)
        pixels[..., 0, :] = labels
        pixels[0, 1] = 200
        savemat(folder / pattern.format(part), {"X": pixels, "y": np.array(labels, np.uint8)[:, None]})


def test_digits_in_their_four_formats(tmp_path: Path) -> None:
    mnist_files(tmp_path / "MNIST" / "MNIST" / "raw")
    usps_files(tmp_path / "usps")
    mat_files(tmp_path / "svhn", "{}_32x32.mat")
    mat_files(tmp_path / "syn", "synth_{}_32x32.mat")
    source = published.digits(tmp_path)
    assert source.domains == ("mnist", "usps", "svhn", "syn") and source.classes == tuple("0123456789")
    street = [(0, TRAIN), (1, TRAIN), (9, TRAIN), (2, TEST)]
    assert rows(source) == [
        (0, 5, TRAIN), (0, 0, TRAIN), (0, 7, TEST), (1, 6, TRAIN), (1, 4, TRAIN), (1, 9, TEST),
        *((2, *row) for row in street), *((3, *row) for row in street),
    ]  # fmt: skip
    assert source.images[0].mode == "L" and source.images[0].getpixel((0, 0)) == 5
    assert source.images[3].getpixel((0, 0)) == 255 and source.images[3].getpixel((1, 0)) == 0
    # x counts columns: the bright pixel is in row 0, column 1.
    assert source.images[8].getpixel((1, 0)) == (200, 200, 200) and source.images[8].getpixel((0, 1)) == (9, 0, 0)


def test_digits_in_other_layouts(tmp_path: Path) -> None:
    import h5py

    (tmp_path / "usps").mkdir()
    with h5py.File(tmp_path / "usps/usps.h5", "w") as file:
        for part, labels in (("train", [3, 8]), ("test", [1])):
            file[f"{part}/data"] = np.full((len(labels), 256), 0.6, np.float32)
            file[f"{part}/target"] = labels
    for digit in range(10):
        tree(tmp_path, f"syn/imgs_train/{digit}/a.jpg", f"syn/imgs_valid/{digit}/a.jpg", f"svhn/{digit}/a.png")
    source = published.digits(tmp_path, domains=("syn", "usps", "svhn"))
    assert source.domains == ("syn", "usps", "svhn")
    assert rows(source)[20:23] == [(1, 3, TRAIN), (1, 8, TRAIN), (1, 1, TEST)]
    assert source.images[20].getpixel((3, 3)) == 153
    assert source.split.tolist() == [TRAIN] * 10 + [TEST] * 10 + [TRAIN, TRAIN, TEST] + [UNSET] * 10
    with pytest.raises(FedgeoError, match="'emnist'"):
        published.digits(tmp_path, domains=("emnist",))


def named_classes(count: int) -> list[str]:
    return list(published.OFFICE_HOME_CLASSES) if count == 65 else [f"c{at}" for at in range(count)]


@pytest.mark.parametrize(
    ("name", "folders", "domains", "classes"),
    [
        ("pacs", ["kfold/art_painting", "kfold/cartoon", "kfold/photo", "kfold/sketch"],
         ("art_painting", "cartoon", "photo", "sketch"), 7),
        ("office_caltech", ["amazon", "caltech10", "dslr", "webcam"], ("amazon", "caltech", "dslr", "webcam"), 10),
        ("office_home", [f"OfficeHomeDataset_10072016/{d}" for d in ("Art", "Clipart", "Product", "Real World")],
         ("Art", "Clipart", "Product", "Real World"), 65),
        ("office_home_lds", ["Art", "Clipart", "Product", "Real_World"],
         ("Art", "Clipart", "Product", "Real World"), 65),
    ],
)  # fmt: skip
def test_sets_in_domain_folders(
    tmp_path: Path, name: str, folders: list[str], domains: tuple[str, ...], classes: int
) -> None:
    tree(tmp_path, *(f"{folder}/{label}/1.jpg" for folder in folders for label in named_classes(classes)))
    (tmp_path / "ImageInfo.csv").write_text("about")
    load = published.IMAGE_SETS[name]
    source = load(tmp_path)
    assert (source.name, source.domains) == (name, domains)
    assert source.classes == tuple(named_classes(classes)) and len(source) == 4 * classes
    auxiliary = write(tmp_path / folders[0] / "zz_another" / "1.jpg")
    with pytest.raises(FedgeoError, match=f"{classes + 1} classes.*zz_another"):
        load(tmp_path)
    auxiliary.unlink()
    auxiliary.parent.rmdir()
    (tmp_path / folders[2]).rename(tmp_path / "elsewhere")
    with pytest.raises(FedgeoError, match=f"expected .*{domains[2]}"):
        load(tmp_path)


def test_the_published_office_home_lds_split(tmp_path: Path) -> None:
    for domain in ("Art", "Clipart", "Product", "Real World"):
        root = tmp_path / "new_dataset" / "Office-Home-0.05" / domain
        tree(root, "train/class_1_index_0.jpg", "train/class_10_index_1.jpg", "train/class_64_index_5.jpg")
        tree(root, "client/class_10_index_1.jpg", "client/class_1_index_0.jpg", "test/class_2_index_7.jpg")
    source = published.office_home_lds(tmp_path, published=True, beta=0.05)
    assert source.classes == published.OFFICE_HOME_CLASSES
    held = {(source.classes[label], split) for domain, label, split in rows(source) if domain == 3}
    assert held == {("Backpack", TRAIN), ("Chair", TRAIN), ("Batteries", TEST)} and len(source) == 12
    with pytest.raises(FedgeoError, match=r"Office-Home-0\.1"):
        published.office_home_lds(tmp_path, published=True, beta=0.1)
    write(root / "client/class_65_index_9.jpg")
    with pytest.raises(FedgeoError, match="class_65_index_9"):
        published.office_home_lds(tmp_path, published=True, beta=0.05)


def test_the_published_split_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    packed = tmp_path / "packed"
    for domain in ("Art", "Clipart", "Product", "Real World"):
        tree(packed / "Office-Home-0.1" / domain, "client/class_0_index_0.jpg", "test/class_2_index_7.jpg")
    archive = shutil.make_archive(str(tmp_path / "fetched"), "zip", packed)
    asked = []

    def fetch(repository: str, file: str, repo_type: str) -> str:
        asked.append((repository, file, repo_type))
        return archive

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    for _ in range(2):
        source = published.office_home_lds(tmp_path / "here", published=True, download=True)
        assert len(source) == 8 and source.labels.tolist() == [0, 2] * 4
    assert asked == [("WeiDai-David/Office-Home-LDS", "new_dataset/Office-Home-0.1.zip", "dataset")]
    assert [entry.name for entry in (tmp_path / "here").iterdir()] == ["Office-Home-0.1"]


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def parquet(file: Path, classes: list[str], labels: list[int], domains: list[str] | None = None) -> None:
    from datasets import ClassLabel, Dataset, Features, Value
    from datasets import Image as ImageColumn

    file.parent.mkdir(parents=True, exist_ok=True)
    columns = {"image": [Image.new("RGB", (3, 3), (label, 0, 0)) for label in labels], "label": labels}
    features = {"image": ImageColumn(), "label": ClassLabel(names=classes)}
    if domains is not None:
        columns["domain"], features["domain"] = domains, Value("string")
    Dataset.from_dict(columns, Features(features)).to_parquet(file)


def test_parquet_files_of_hugging_face(tmp_path: Path, hub_cache: None) -> None:
    domains = ["sketch", "photo", "cartoon", "art_painting"] * 2
    folder = tmp_path / "pacs"
    parquet(folder / "data/train-00000-of-00001.parquet", named_classes(7), [0, 1, 2, 3, 4, 5, 6, 0], domains)
    source = published.pacs(folder)
    assert source.domains == ("art_painting", "cartoon", "photo", "sketch")
    assert source.domain.tolist() == [3, 2, 1, 0] * 2 and source.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
    assert source.images[5].getpixel((0, 0)) == (5, 0, 0)
    assert source.images.digest(0) == source.images.digest(7) != source.images.digest(1)

    tiny = tmp_path / "tiny"
    parquet(tiny / "data/train-00000-of-00001-1359597a978bc4fa.parquet", ["n01", "n02"], [1, 0])
    parquet(tiny / "data/valid-00000-of-00001-70d52db3c749a935.parquet", ["n01", "n02"], [1])
    source = published.tiny_imagenet(tiny)
    assert rows(source) == [(0, 1, TRAIN), (0, 0, TRAIN), (0, 1, TEST)] and source.classes == ("n01", "n02")


def test_the_hugging_face_cache_is_looked_into_without_a_network(
    tmp_path: Path, hub_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet(tmp_path / "snap/data/train-00000-of-00001.parquet", ["a"], [0])
    asked = []

    def snapshot(repository: str, **options: object) -> str:
        asked.append((repository, options["local_files_only"]))
        return str(tmp_path / "snap")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    with pytest.raises(FedgeoError, match="pacs: domains"):
        published.pacs()
    assert asked == [("flwrlabs/pacs", True)]
    assert download.hub_folder("flwrlabs/pacs", tmp_path / "none", cached=False, download=True) == tmp_path / "snap"
    assert asked[1:] == [("flwrlabs/pacs", False)]


@pytest.mark.parametrize("name", list(published.IMAGE_SETS))
def test_a_set_that_is_not_there_says_what_to_do(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    load = published.IMAGE_SETS[name]
    with pytest.raises(FedgeoError) as told:
        load(tmp_path / "mine")
    message = str(told.value)
    assert str(tmp_path / "mine") in message and "fetch" in message and "data.path" in message
    assert ("data.download=true" in message) == (name != "office_caltech")
    with pytest.raises(FedgeoError, match=str(tmp_path / "torch" / "datasets")):
        load()


def test_each_domain_of_digits_says_what_to_do(tmp_path: Path) -> None:
    for domain, file in (("usps", "usps.bz2"), ("svhn", "train_32x32.mat"), ("syn", "synth_train_32x32.mat")):
        with pytest.raises(FedgeoError, match=file):
            published.digits(tmp_path, domains=(domain,))


def test_a_failed_download_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError("no route\nlong trace")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    monkeypatch.setattr("torchvision.datasets.MNIST.__init__", fail)
    for load in (
        lambda: published.pacs(tmp_path, download=True),
        lambda: published.office_home_lds(tmp_path, published=True, download=True),
        lambda: published.digits(tmp_path, download=True),
    ):
        with pytest.raises(FedgeoError, match=r"no route$"):
            load()


# --- real images


def test_real_sets(test_data: Path) -> None:
    images = test_data / "images"
    expected = {"pacs": (4, 7, 560), "office_caltech": (4, 10, 480), "cifar10": (1, 10, 400)}
    for name, (domains, classes, count) in expected.items():
        source = published.IMAGE_SETS[name](images / name)
        assert (len(source.domains), len(source.classes)) == (domains, classes)
        assert abs(len(source) - count) <= 10
        for at in range(0, len(source), 37):
            assert source.images[at].mode in ("L", "RGB")
    digits = published.digits(images / "digits", domains=("mnist", "usps"))
    assert len(digits) == 800 and set(np.bincount(digits.labels)) == {80}
    assert {digits.images[at].convert("L").size for at in range(400)} == {(28, 28)}

"""The data set of images: every kind of data by its name, and what a node asks of it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.common.code import CONF
from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.images import folders
from app.data.images.dataset import LOADERS, image_dataset, load_source
from app.data.images.download import HubImages


def pictures(folder: Path, number: int, seed: int) -> None:
    """Grey pictures of 8 x 8 pixels, each different."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for at in range(number):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{at}.png")


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Three sites (domains) with two classes of 20 pictures."""
    for seed, name in enumerate(f"{site}/{label}" for site in ("north", "south", "west") for label in ("cat", "dog")):
        pictures(tmp_path / "sites" / name, 20, seed)
    return tmp_path / "sites"


def saved_features(path: Path, official: bool = False) -> Path:
    """Embeddings of 6 dimensions: two domains of 30, or an official split of one."""
    rng = np.random.default_rng(0)
    names = ("train", "test") if official else ("a", "b")
    arrays = {f"{name}_X": rng.normal(size=(30, 6)).astype(np.float32) for name in names}
    np.savez(path, **arrays, **{f"{name}_y": np.arange(30) % 3 for name in names})
    return path


def test_every_data_set_has_a_file_and_every_file_of_images_a_loader() -> None:
    named = {}
    for path in sorted((CONF / "data").glob("[!_]*.yaml")):
        data = load([f"data={path.stem}"]).data
        if data.family == "images":
            named[path.stem] = data.name
    assert named == {name: name for name in LOADERS}


def test_a_folder_of_sites_is_a_client_a_domain(sites: Path, tmp_path: Path) -> None:
    dataset = image_dataset(
        load(f"experiment=domain_folder data.path={sites} encoder=pixels cache_dir={tmp_path / 'cache'}")
    )
    assert dataset.domains == ("north", "south", "west") and dataset.classes == ("cat", "dog")
    assert [dataset.client_domain(k) for k in range(len(dataset))] == ["north", "south", "west"]
    for k in range(3):
        own = dataset.train(k)
        assert own.x.shape == (len(own), 64) and set(own.domain) == {k}
        assert np.allclose(np.linalg.norm(own.x, axis=1), 1, atol=1e-6)


def test_a_domain_may_be_split_over_several_clients(sites: Path) -> None:
    options = f"experiment=domain_folder data.path={sites} encoder=pixels federation.clients=6"
    dataset = image_dataset(load(options))
    assert [dataset.client_domain(k) for k in range(6)] == ["north", "north", "south", "south", "west", "west"]
    assert np.intersect1d(dataset.partition.clients[0], dataset.partition.clients[1]).size == 0


def test_a_fraction_of_the_training_samples(sites: Path) -> None:
    options = f"experiment=domain_folder data.path={sites} encoder=pixels"
    whole, half = (image_dataset(load(f"{options} federation.fraction={share}")) for share in (1.0, 0.5))
    assert [len(rows) for rows in whole.partition.clients] == [28] * 3
    assert [len(rows) for rows in half.partition.clients] == [14] * 3
    assert np.array_equal(whole.split.test, half.split.test)


def test_an_image_folder_is_split_among_clients(sites: Path) -> None:
    dataset = image_dataset(
        load(f"experiment=image_folder data.path={sites / 'north'} encoder=pixels federation.clients=3")
    )
    assert dataset.classes == ("cat", "dog") and len(dataset) == 3
    assert sum(len(dataset.train(k)) for k in range(3)) == len(dataset.split.train)


@pytest.mark.parametrize("official", [False, True])
def test_features_need_no_encoder(tmp_path: Path, official: bool) -> None:
    """The preset's encoder would need weights that are not here; only its normalisation counts."""
    path = saved_features(tmp_path / "made.npz", official)
    for normalise in ("l2", "none"):
        partition = "iid" if official else "domain"
        dataset = image_dataset(
            load(
                f"experiment=pacs data=features data.path={path} federation.fraction=1.0 encoder.normalise={normalise} "
                f"federation.partition={partition} augmentation.step2=false"
            )
        )
        assert dataset.inputs == {"dimension": 6}
        rows = dataset.partition.clients[0]
        raw = dataset.source.features[rows]
        lengths = np.linalg.norm(raw, axis=1, keepdims=True) if normalise == "l2" else 1
        assert np.allclose(dataset.train(0).x, raw / lengths, atol=1e-6)
        assert "encoder" not in dataset.facts(0)
    assert dataset.domains == (("made",) if official else ("a", "b"))


def test_nodes_that_encode_differently_are_told_apart(sites: Path) -> None:
    facts = [
        image_dataset(load(f"experiment=domain_folder data.path={sites} encoder=pixels {more}")).facts(0)
        for more in ("", "encoder.size=4", "encoder.normalise=none", "seed=2")
    ]
    assert facts[0] == facts[3]
    assert facts[0]["encoder"] != facts[1]["encoder"]
    assert facts[0]["normalisation"] != facts[2]["normalisation"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("data=features", "data.path is not set: data=features needs an npz file"),
        ("data=image_folder", "data.path is not set: data=image_folder needs a folder"),
        ("data=domain_folder data.path=/nowhere", "/nowhere: no such folder"),
        ("data=features data.path=/nowhere.npz", "/nowhere.npz: no such file"),
        ("data=sklearn_digits +data.domains=[a]", "data.domains: data=sklearn_digits has no such setting"),
        ("data=sklearn_digits data.name=other", "data.name=other: must be one of"),
        ("data=office_home_lds data.published=true", "federation.partition=dirichlet: data.published=true is split"),
        ("augmentation.step2=true", r"augmentation.step2=true: all clients hold one domain \(digits\)"),
        ("experiment=cifar100 data.path=/nowhere", "cifar100: not found in /nowhere"),
        ("experiment=pacs data.path=/nowhere", "pacs: not found in /nowhere"),
    ],
)
def test_what_cannot_be_had_is_told(overrides: str, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        image_dataset(load(overrides))


def test_a_published_split_takes_its_beta_from_the_federation(tmp_path: Path) -> None:
    """The folder of beta 0.5 is there, that of 0.1 is not."""
    for domain in ("Art", "Clipart", "Product", "Real World"):
        for held in ("client", "test"):
            pictures(tmp_path / "Office-Home-0.5" / domain / held, 2, 0)
            for at in range(2):
                folder = tmp_path / "Office-Home-0.5" / domain / held
                (folder / f"{at}.png").rename(folder / f"class_{at}_index_{at}.png")
    options = f"data=office_home_lds data.published=true data.path={tmp_path} federation.partition=domain"
    config = load(f"{options} federation.beta=0.5")
    assert len(load_source(config.data, config.federation)) == 16
    with pytest.raises(FedgeoError, match=r"Office-Home-0\.1"):
        image_dataset(load(f"{options} federation.beta=0.1"))


def parquet(folder: Path, shift: int) -> Path:
    """Tiny-ImageNet as Hugging Face has it, with two classes of six pictures."""
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageColumn

    features = Features({"image": ImageColumn(), "label": ClassLabel(names=["n01", "n02"])})
    for split in ("train", "valid"):
        colours = [20 * at + shift for at in range(12)]
        shown = [Image.new("L", (8, 8), colour) for colour in colours]
        table = Dataset.from_dict({"image": shown, "label": [at % 2 for at in range(12)]}, features)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def test_a_second_run_reads_no_image_of_a_hugging_face_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")
    encoder = "encoder=pixels encoder.normalise=none"
    options = f"experiment=tiny_imagenet {encoder} federation.clients=1 federation.partition=iid data.val_fraction=0"

    def means(seed: int) -> np.ndarray:
        """A seed of its own makes a data set of its own, which loads the data set anew."""
        dataset = image_dataset(
            load(f"{options} data.path={tmp_path / 'tiny'} cache_dir={tmp_path / 'cache'} seed={seed}")
        )
        return np.sort(dataset.train(0).x.mean(1) * 255)

    parquet(tmp_path / "tiny", 0)
    assert np.allclose(means(1), np.arange(12) * 20, atol=1e-3)
    monkeypatch.setattr(HubImages, "_bytes", lambda *_: pytest.fail("an image was read"))
    assert np.allclose(means(2), np.arange(12) * 20, atol=1e-3)
    monkeypatch.undo()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")
    parquet(tmp_path / "tiny", 5)
    assert np.allclose(means(3), np.arange(12) * 20 + 5, atol=1e-3)


def test_a_client_encodes_its_own_images_alone(sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = image_dataset(
        load(f"experiment=domain_folder data.path={sites} encoder=pixels cache_dir={tmp_path / 'cache'}")
    )
    opened: list[Path] = []
    monkeypatch.setattr(folders, "open_image", lambda path, *_: opened.append(path) or Image.open(path))
    dataset.train(1)
    assert isinstance(dataset.source.images, folders.FileImages)
    assert sorted(opened) == sorted(dataset.source.images.paths[row] for row in dataset.partition.clients[1])

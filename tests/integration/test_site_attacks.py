"""What a server may try to get out of a site with settings and messages of its own, and does not under privacy=site.

Each attack is told the truth it is after, so that what it fails for is the site's answer. Those that a looser policy
lets through are shown to work there.
"""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from app.client.site_node import bounded
from app.config.compose import load
from app.config.node_config import Site
from app.data.policy_view import policy_view
from app.data.site_dataset import site_dataset
from app.data.site_split import site_split
from app.launch.deployment import POLICY, LocalSite
from app.messages import EVALUATE, TRAIN
from tests.dishonest import Server, arrays, linear
from tests.sites import digit_sites

MEANS = ("method=means_only", "augmentation=none", "encoder.normalise=none")
FEDAVG = ("method=fedavg", "augmentation=none")
OPEN = "policy: research\nmin_count: 1\nmin_total: 1\nrank_share: 1.0\nprototypes: true\nround_counts: 1\n" + (
    "releases: null\nencoders: null\nmax_hidden: null\nmin_batch: 1\n"
)


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> LocalSite:
    return digit_sites(tmp_path_factory.mktemp("dealt"), 1)[0]


@pytest.fixture
def site(dealt: LocalSite, tmp_path: Path) -> LocalSite:
    """All digits at one site, which has taken part in nothing."""
    return dataclasses.replace(dealt, folder=tmp_path / "site")


@pytest.fixture
def fresh(site: LocalSite) -> dict[str, str]:
    """Its node-config, without a word of how its data are split."""
    return {key: value for key, value in site.node_config.items() if key != "split-seed"}


def with_policy(node_config: dict[str, str], folder: Path, text: str) -> dict[str, str]:
    path = folder / "policy.yaml"
    path.write_text(text)
    return node_config | {"policy": str(path)}


def training_means(server: Server) -> tuple[np.ndarray, np.ndarray]:
    found = server.class_statistics("means")
    return found.counts, found.means


# --- two sets that differ by one sample ---

FRACTIONS = ("data.test_fraction=0.25", "data.test_fraction=0.2625")


def test_the_difference_of_two_runs_means_is_no_image(fresh: dict[str, str], tmp_path: Path) -> None:
    """Of a class of about 180 images the two fractions leave out two more: n m - n' m' is their sum."""
    open_config = with_policy(fresh, tmp_path, OPEN)
    leak = [training_means(Server(open_config, (*MEANS, words))) for words in FRACTIONS]
    assert (leak[0][0] > leak[1][0]).all() and (leak[0][0] - leak[1][0]).max() <= 3
    assert not np.array_equal(leak[0][1], leak[1][1])

    stop = [Server(fresh, (*MEANS, words), run=f"{k:016x}").statistics("means") for k, words in enumerate(FRACTIONS)]
    assert not isinstance(stop[0], str) and not isinstance(stop[1], str)
    assert all(stop[0][name].tobytes() == stop[1][name].tobytes() for name in stop[0])


def test_runs_over_the_seed_and_the_fractions_have_one_set(fresh: dict[str, str]) -> None:
    words = ((f"seed={seed}", f"data.test_fraction=0.{seed}", f"data.val_fraction=0.{seed}") for seed in (1, 2, 3))
    found = [Server(fresh, (*MEANS, *own)).statistics("means") for own in words]
    assert all(isinstance(each, dict) for each in found)
    assert len({each["means"].tobytes() for each in found if isinstance(each, dict)}) == 1
    split = Path(fresh["state-path"]) / "releases" / "split.json"
    assert '"test_fraction": 0.1' in split.read_text()  # of the run that came first


def test_two_sites_split_alike_data_otherwise(fresh: dict[str, str], tmp_path: Path) -> None:
    """The seed is nobody's to guess: it is not the run's."""
    seeds = set()
    for name in ("a", "b"):
        node_config = fresh | {"state-path": str(tmp_path / name)}
        own = Site.of(node_config)
        assert own is not None
        seeds.add(site_split(bounded(load(["engine=deployment"]), own), own).seed)
    assert len(seeds) == 2 and 1 not in seeds


def test_what_the_site_says_of_its_split_holds(fresh: dict[str, str]) -> None:
    told = Site.of(fresh | {"split-seed": "7", "test-fraction": "0.3", "val-fraction": "0"})
    assert told is not None
    found = site_split(bounded(load(["engine=deployment", "data.test_fraction=0.1"]), told), told)
    assert (found.seed, found.test_fraction, found.val_fraction) == (7, 0.3, 0.0)
    assert not (told.state / "releases").exists()


def test_a_second_set_is_refused_until_the_policy_allows_it(fresh: dict[str, str], tmp_path: Path) -> None:
    assert not isinstance(Server(fresh, MEANS).statistics("means"), str)
    other = Server(fresh, (*MEANS, "encoder.size=7"))
    for refused in (other.hello(), other.statistics("means")):
        assert isinstance(refused, str) and "privacy.releases=1 ever" in refused
        assert "raise releases in the policy file" in refused
    assert not isinstance(Server(fresh, MEANS, run="1" * 16).statistics("means"), str)  # the first one, again
    allowed = with_policy(fresh, tmp_path, f"releases: 2\n{POLICY.read_text()}")
    assert not isinstance(Server(allowed, other.words).statistics("means"), str)


def test_training_counts_as_a_release(fresh: dict[str, str]) -> None:
    """One step from weights that the server chose is as exact as a mean."""
    head = linear(np.zeros((10, 64)), np.zeros(10))
    assert not isinstance(Server(fresh, FEDAVG).weighed(TRAIN, head), str)
    assert "privacy.releases=1" in str(Server(fresh, (*FEDAVG, "encoder.normalise=none")).weighed(TRAIN, head))


def test_new_files_are_another_set(fresh: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(fresh["data-path"], tmp_path / "data")
    grown = fresh | {"data-path": str(tmp_path / "data")}
    assert not isinstance(Server(grown, MEANS).statistics("means"), str)
    image = next((tmp_path / "data" / "3").iterdir())
    shutil.copy(image, image.with_name("new.png"))
    forget()
    assert "privacy.releases=1" in str(Server(grown, MEANS).statistics("means"))


def forget() -> None:
    """The next message is a new process."""
    from app.client.site_node import site_node
    from app.data import site_dataset as module
    from app.data.images.dataset import dataset_of

    for cached in (site_node, module.site_dataset, module._inner, dataset_of):
        cached.cache_clear()


def test_a_part_of_the_samples_cannot_be_asked_for(fresh: dict[str, str]) -> None:
    assert "federation.fraction=0.5" in str(Server(fresh, (*MEANS, "federation.fraction=0.5")).hello())


# --- counts ---


def test_a_rank_tells_no_more_than_the_count(site: LocalSite) -> None:
    """Of n samples a covariance has rank n - 1: 91 rows over seven classes that are told as 10 each are 14 samples."""
    words = ("method=lda", "augmentation=none", "encoder.size=24")
    found = Server(site.node_config, words).class_statistics("covariances")
    truth = truth_of(site, words)
    assert (found.counts == truth // 10 * 10).all() and (truth % 10 > 0).any()
    for row in range(len(found)):
        values = np.linalg.eigvalsh(found.covariance(row))
        assert np.count_nonzero(values > 1e-9 * values[-1]) <= found.counts[row] - 1
    assert (found.ranks[found.ranks >= 0] == found.counts[found.ranks >= 0] - 1).all()


def truth_of(site: LocalSite, words: tuple[str, ...]) -> np.ndarray:
    """The training samples of each class."""
    own = Site.of(site.node_config)
    assert own is not None
    return np.bincount(site_dataset(bounded(load(["engine=deployment", *words]), own), own).train(0).y)


def test_runs_with_stricter_policies_of_their_own_do_not_count_samples(site: LocalSite) -> None:
    """With min_count 121, 122, 123 ... a class would vanish at its exact count; steps of 11, 13 ... tell it as well."""
    truth = truth_of(site, ())
    assert 120 < truth.min() < truth.max() < 130  # so that a run with 125 would tell some from others
    said = [Server(site.node_config, (f"privacy.min_count={least}",)).hello() for least in (115, 120, 121, 125)]
    told = [each["classes"] if isinstance(each, dict) else [] for each in said]
    assert [len(names) for names in told] == [10, 10, 0, 0] and "no class with privacy.min_count=130" in str(said[-1])
    for step in (11, 13, 17):
        stepped = Server(site.node_config, (f"privacy.round_counts={step}",)).hello()
        assert isinstance(stepped, dict) and set(stepped["counts"]) == {120}


# --- one test sample beyond a threshold ---


@pytest.fixture
def thresholds(site: LocalSite) -> Iterator[tuple[LocalSite, list[np.ndarray]]]:
    """The site, and biases of a head that calls a digit 1 where its 29th pixel is above a threshold, else 0.

    None lies above the threshold, one does, two do.
    """
    own = Site.of(site.node_config)
    assert own is not None
    config = bounded(load(["engine=deployment", *FEDAVG]), own)
    scored = policy_view(site_dataset(config, own), config.privacy, 1, by_name=True).held_out("test", 0)
    values = np.unique(scored.x[:, 28])
    middles = [2.0, *((values[:-1] + values[1:]) / 2)[:-3:-1]]
    yield site, [np.array([middle * 100, 0.0] + [-1e3] * 8) for middle in middles]


def test_a_threshold_does_not_find_a_sample(thresholds: tuple[LocalSite, list[np.ndarray]], tmp_path: Path) -> None:
    site, biases = thresholds
    weight = np.zeros((10, 64))
    weight[1, 28] = 100.0

    def answers(node_config: dict[str, str]) -> list[dict[str, np.ndarray]]:
        server = Server(node_config, FEDAVG)
        found = [arrays(server.weighed(EVALUATE, linear(weight, bias), k + 1)) for k, bias in enumerate(biases)]
        return [each for each in found if isinstance(each, dict)]

    leak = answers(with_policy(site.node_config, tmp_path, OPEN))
    assert len(leak) == 3 and not np.array_equal(leak[0]["test.confusion"], leak[1]["test.confusion"])
    stop = answers(site.node_config | {"state-path": str(tmp_path / "other")})
    assert len(stop) == 3
    for each in stop:
        sums = each["test.confusion"][0].sum(axis=1)
        assert (sums % 10 == 0).all() and (sums == stop[0]["test.confusion"][0].sum(axis=1)).all()
        assert all(np.array_equal(stop[0][name], each[name]) for name in ("val.confusion", "test.confusion"))


def test_a_loss_does_not_find_a_sample(thresholds: tuple[LocalSite, list[np.ndarray]]) -> None:
    """A sample of loss 1e6 among others of 0 stands out of their sum, whatever the confusion says."""
    site, biases = thresholds
    weight = np.zeros((10, 64))
    weight[1, 28] = 1e6
    server = Server(site.node_config, FEDAVG)
    losses = []
    for number, bias in enumerate(biases, start=1):
        found = arrays(server.weighed(EVALUATE, linear(weight, bias * 1e4), number))
        assert isinstance(found, dict)
        losses.append(float(found["test.loss"][0]))
    assert len(set(losses)) == 1 and torch.isfinite(torch.tensor(losses)).all()


def test_statistics_are_the_same_message_whoever_asks(site: LocalSite) -> None:
    first = Server(site.node_config, ("augmentation=ggeur",)).statistics()
    forget()
    again = Server(site.node_config, ("augmentation=ggeur", "seed=5"), run="2" * 16).statistics()
    assert isinstance(first, dict) and isinstance(again, dict)
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)


# --- outputs that are moved by single samples ---


def test_classes_that_a_site_lacks_are_bounded_as_hidden_units_are(site: LocalSite, tmp_path: Path) -> None:
    """Of a class of the server's own making, beyond a threshold along some direction, the update is who lies there."""
    opened = with_policy(site.node_config, tmp_path, OPEN)
    own = Site.of(opened)
    assert own is not None
    x = site_dataset(bounded(load(["engine=deployment", *FEDAVG]), own), own).train(0).x.astype(np.float64)
    made = 100
    directions = np.random.default_rng(0).standard_normal((made, 64))
    along = np.sort(x @ directions.T, axis=0)
    thresholds = (along[-1] + along[-2]) / 2
    weight = np.vstack([np.zeros((10, 64)), 1e4 * directions])
    bias = np.concatenate([[0.0], np.full(9, -1e8), -1e4 * thresholds])
    steps = ("training.batch_size=5000", "training.epochs=1", "training.momentum=0", "training.weight_decay=0")
    words = (*FEDAVG, *steps, "training.lr=1e6")
    names = (*"0123456789", *(f"made {k:03d}" for k in range(made)))
    head = linear(weight, bias)

    def answer(node_config: dict[str, str]) -> dict[str, np.ndarray] | str:
        return arrays(Server(node_config, words, classes=names).weighed(TRAIN, head))

    leak = answer(opened)
    assert not isinstance(leak, str)
    moved = leak["linear.weight"][10:].astype(np.float64) - head["linear.weight"][10:].double().numpy()
    moved = moved[np.linalg.norm(moved, axis=1) > 0]
    alike = np.abs(moved @ x.T) / np.linalg.norm(moved, axis=1)[:, None] / np.linalg.norm(x, axis=1)
    assert len(set(alike.argmax(axis=1)[alike.max(axis=1) > 0.9999])) > made // 2

    stop = answer(site.node_config | {"state-path": str(tmp_path / "other")})
    assert isinstance(stop, str) and stop.startswith("the run has 100 classes of which the site has too few samples")
    assert stop.endswith("have its administrator set max_hidden: 100 in the policy file")

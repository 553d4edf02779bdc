"""What a site answers a run that asks for more than its own configuration needs, or is set beyond the site's policy."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from app import messages
from app.config.compose import load
from app.config.node_config import Refusal, check_run
from app.launch.deployment import POLICY, LocalSite
from app.messages import EVALUATE, GEOMETRY, SUMS, TRAIN
from tests.dishonest import Server, linear
from tests.sites import digit_sites

MEANS = ("method=means_only", "augmentation=none", "encoder.normalise=none")
FEDAVG = ("method=fedavg", "augmentation=none")


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> LocalSite:
    return digit_sites(tmp_path_factory.mktemp("dealt"), 1)[0]


@pytest.fixture
def fresh(dealt: LocalSite, tmp_path: Path) -> dict[str, str]:
    """The node-config of a site that has all digits, and has taken part in nothing."""
    return dataclasses.replace(dealt, folder=tmp_path / "site").node_config


# --- what is asked ---


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (FEDAVG, "covariances"),
        (FEDAVG, "means"),
        (FEDAVG, "augmentation"),
        (MEANS, "covariances"),
        (("augmentation=shift",), "covariances"),
        (("augmentation=ggeur",), "means"),
        ((*FEDAVG, "model.init=ridge"), "means"),
    ],
)
def test_statistics_that_the_run_has_no_use_for_are_refused(
    fresh: dict[str, str], words: tuple[str, ...], what: str
) -> None:
    refused = Server(fresh, words).statistics(what)
    assert isinstance(refused, str) and f"needs no {what} statistics" in refused


def test_what_the_run_needs_is_answered(fresh: dict[str, str]) -> None:
    asked = {"covariances": (*FEDAVG, "model.init=lda"), "means": MEANS[:2], "augmentation": ("augmentation=ggeur",)}
    assert not any(isinstance(Server(fresh, words).statistics(what), str) for what, words in asked.items())


def test_other_messages_that_the_run_has_no_use_for_are_refused(fresh: dict[str, str]) -> None:
    head, rounds = linear(np.zeros((10, 64)), np.zeros(10)), "federation.rounds=2"
    server = Server(fresh, (*FEDAVG, rounds))
    question = messages.question_content("mean", {})
    assert "fits nothing to sums" in str(server.ask(SUMS, question))
    assert "augments with nothing that is shared" in str(server.weighed(GEOMETRY, head))
    assert "this is round 3, the run has 2" in str(server.weighed(TRAIN, head, 3))
    assert "this is round 3, the run has 2" in str(server.weighed(EVALUATE, head, 3))
    assert "steps are told" in str(server.weighed(TRAIN, head, 1, **{"steps-of": [0], "steps": [1]}))
    one = Server(fresh, (*MEANS[:2], rounds))
    assert "has no rounds of training" in str(one.weighed(TRAIN, head))
    assert "this is round 2, the run has 1" in str(one.weighed(EVALUATE, head, 2))


def test_a_round_is_not_asked_for_again_and_again(fresh: dict[str, str]) -> None:
    server = Server(fresh, FEDAVG)
    heads = [linear(np.full((10, 64), k), np.zeros(10)) for k in range(4)]
    for kind in (TRAIN, EVALUATE):
        said = [server.weighed(kind, head) for head in (heads[0], heads[0], *heads)]
        assert not any(isinstance(each, str) for each in said[:-1])
        assert "round 1 was asked for with 3 different weights or settings already" in str(said[-1])
        assert not isinstance(server.weighed(kind, heads[3], 2), str)


def test_batch_means_are_of_one_size(fresh: dict[str, str], tmp_path: Path) -> None:
    """Batches of 16 and of 17 out of one permutation: what lies between two of their ends is few samples."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"prototypes: true\n{POLICY.read_text()}")
    mixing = fresh | {"policy": str(policy)}
    first, again, other = (
        Server(mixing, ("augmentation=fedmix", f"augmentation.mean_of={size}", f"seed={seed}"), run=f"{seed:016x}")
        for size, seed in ((16, 1), (16, 2), (17, 3))
    )
    means = [server.statistics() for server in (first, again)]
    assert isinstance(means[0], dict) and isinstance(means[1], dict)
    assert means[0]["means"].tobytes() == means[1]["means"].tobytes()
    assert "has released fedmix statistics of this set with mean_of=16" in str(other.statistics())


# --- settings beyond the policy ---


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("model=mlp", "model.hidden=600", "training.batch_size=5000"), "the model has 600 hidden units"),
        (("model.hidden=600",), "set model.hidden=64, or have its administrator set max_hidden: 600 in the policy"),
        (("model=mlp",), "the model has 256 hidden units: the site's policy allows 64 at most: set model.hidden"),
        (("personal=finetune", "personal.epochs=21"), "personal.epochs=21: the site's policy allows 20 at most"),
        (("training.epochs=21",), "set training.epochs=20, or have its administrator set max_epochs: 21 in"),
        (("training.epochs=21",), "training.epochs=21: the site's policy allows 20 at most"),
        (("federation.rounds=201",), "federation.rounds=201: the site's policy allows 200 at most"),
        (("training.batch_size=7",), "training.batch_size=7: the site's policy allows 8 at least"),
        (("encoder.size=33",), "encoder.size=33: the site's policy allows 32 at most"),
    ],
)
def test_settings_beyond_the_policy_are_refused_by_name(
    fresh: dict[str, str], words: tuple[str, ...], refusal: str
) -> None:
    """Of a hidden unit that one sample alone switches on, the update is that sample: 600 units gave 171 of 600."""
    server = Server(fresh, (*FEDAVG, *words))
    assert refusal in str(server.hello())
    assert refusal in str(server.weighed(TRAIN, linear(np.zeros((10, 64)), np.zeros(10))))


def test_pixels_are_refused_where_the_policy_does_not_name_them(fresh: dict[str, str]) -> None:
    """The mean of images is an image. Embeddings that were made beforehand meet no encoder."""
    unsaid = {key: value for key, value in fresh.items() if key != "policy"}
    refused = Server(unsaid, FEDAVG).hello()
    assert isinstance(refused, str) and refused.startswith("encoder=pixels: the site's policy allows open_clip, timm")


@pytest.mark.parametrize("target", ["flwr.clientapp:ClientApp", "app.client.node:Node", "os.path:join"])
def test_a_run_names_only_what_is_a_method(target: str) -> None:
    with pytest.raises(Refusal, match="that its policy names .flwr.serverapp.strategy."):
        check_run(load(["engine=deployment", f"method.target={target}"]), ["flwr.serverapp.strategy"])


def test_methods_are_those_of_the_app_and_of_the_policy() -> None:
    for target in ("flwr.serverapp.strategy:FedMedian", "app.algorithms.moon:Moon", "app.one_shot.lda:LDA"):
        check_run(load(["engine=deployment", f"method.target={target}"]), ["flwr.serverapp.strategy"])
    check_run(load(["engine=deployment", "method.target=flwr.serverapp.strategy:FedAvg"]))
    with pytest.raises(Refusal):
        check_run(load(["engine=deployment", "method.target=flwr.serverapp.strategy:FedMedian"]), [])


def test_a_run_does_not_say_where_weights_come_from() -> None:
    with pytest.raises(Refusal, match="encoder.model: must be a plain name"):
        check_run(load(["engine=deployment", "encoder=timm", "encoder.model=hf-hub:anybody/anything"]))

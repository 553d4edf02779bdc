"""Tangent space + LR and MDM, federated: what they give is what pyriemann and scikit-learn give on pooled trials."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from pyriemann import classification
from pyriemann.geometry.distance import distance_riemann
from pyriemann.tangentspace import TangentSpace as PooledTangentSpace
from sklearn.linear_model import LogisticRegression

from app.algorithms import registry
from app.common.errors import FedgeoError
from app.models.base import Weights
from app.models.riemannian import MinimumDistance, TangentSpace, tangent_vectors
from app.one_shot.fitted import Ask, Fitted

C = 6
Site = tuple[np.ndarray, np.ndarray]


def method(name: str, **settings: Any) -> Fitted:
    found = registry.load(
        {"tangent_lr": "app.one_shot.tangent_lr:TangentLR", "mdm": "app.one_shot.mdm:MDM"}[name], **settings
    )
    assert isinstance(found, Fitted)
    return found


def site(seed: int, n: int, classes: Sequence[int] = (0, 1, 2)) -> Site:
    """Covariances of a subject with a mixing of its own; a class has more power in its direction."""
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, n)
    x = rng.normal(size=(n, C, 40))
    x[np.arange(n), y] *= 1.8
    x = (np.eye(C) + 0.3 * rng.normal(size=(C, C))) @ x
    return x @ x.mT / 40, y


def asking(algorithm: Fitted, sites: Sequence[Site], classes: int = 3, *, forgetful: bool = False) -> Ask:
    """The server's question put to all sites; ``forgetful`` ones are new processes each time."""
    memories: list[dict[str, Any]] = [{} for _ in sites]

    def ask(question: str, asked: Weights) -> list[Weights]:
        return [
            algorithm.answer(
                question, asked, torch.from_numpy(x), torch.from_numpy(y), classes, {} if forgetful else memory
            )
            for (x, y), memory in zip(sites, memories, strict=True)
        ]

    return ask


def pooled(sites: Sequence[Site]) -> Site:
    return np.concatenate([x for x, _ in sites]), np.concatenate([y for _, y in sites])


SITES = [site(1, 40), site(2, 25), site(3, 31)]
NEW = site(9, 20)[0]


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_tangent_lr_is_pyriemann_and_scikit_learn_on_pooled_trials(strength: float) -> None:
    algorithm = method("tangent_lr", C=strength)
    model = algorithm.model(C, 3)
    model.load(algorithm.fit(asking(algorithm, SITES), 3))
    x, y = pooled(SITES)
    space = PooledTangentSpace(metric="riemann").fit(x)
    reference = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(space.transform(x), y)
    expected = reference.predict_log_proba(space.transform(NEW))
    found = torch.log_softmax(model(torch.from_numpy(NEW)).logits, dim=1).detach().numpy()
    assert np.allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert np.array_equal(found.argmax(1), reference.predict(space.transform(NEW)))


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_c_is_scikit_learns_for_two_classes_and_for_more(classes: int, strength: float) -> None:
    """At the model's own mean, so that nothing but the fit can differ."""
    sites = [site(seed, n, range(classes)) for seed, n in ((1, 40), (2, 25), (3, 31))]
    algorithm = method("tangent_lr", C=strength)
    model = algorithm.model(C, classes)
    model.load(algorithm.fit(asking(algorithm, sites, classes), classes))
    x, y = pooled(sites)
    mean = model.export()["mean"]
    trained, new = (tangent_vectors(torch.from_numpy(part), mean).numpy() for part in (x, NEW))
    reference = LogisticRegression(C=strength, solver="newton-cg", tol=1e-10, max_iter=10_000).fit(trained, y)
    found = torch.log_softmax(model(torch.from_numpy(NEW)).logits, dim=1).detach().numpy()
    assert np.abs(found - reference.predict_log_proba(new)).max() < 1e-6


def test_mdm_is_pyriemanns_on_pooled_trials() -> None:
    algorithm = method("mdm")
    model = algorithm.model(C, 3)
    model.load(algorithm.fit(asking(algorithm, SITES), 3))
    reference = classification.MDM().fit(*pooled(SITES))
    distances = np.sqrt(-model(torch.from_numpy(NEW)).logits.detach().numpy())
    assert np.allclose(distances, reference.transform(NEW), atol=1e-6)


@pytest.mark.parametrize("name", ["tangent_lr", "mdm"])
def test_how_trials_are_spread_over_sites_changes_nothing(name: str) -> None:
    algorithm = method(name)
    together = algorithm.fit(asking(algorithm, [pooled(SITES)]), 3)
    apart = algorithm.fit(asking(algorithm, SITES), 3)
    for key, value in together.items():
        assert torch.allclose(apart[key], value, rtol=0, atol=1e-4 if "linear" in key else 1e-6)


def test_what_a_site_remembers_saves_time_and_changes_nothing() -> None:
    algorithm = method("tangent_lr")
    remembered = algorithm.fit(asking(algorithm, SITES), 3)
    forgotten = algorithm.fit(asking(algorithm, SITES, forgetful=True), 3)
    assert all(torch.equal(remembered[key], forgotten[key]) for key in remembered)


def test_a_memory_of_another_mean_is_not_used() -> None:
    """A second fit by the same processes, after their data's mean has moved, as across two runs."""
    algorithm = method("tangent_lr")
    memory: dict[str, Any] = {}
    x, y = (torch.from_numpy(part) for part in SITES[0])
    weight = torch.ones(3, C * (C + 1) // 2, dtype=torch.float64)
    asked = {"weight": weight, "bias": torch.zeros(3, dtype=torch.float64)}
    means = [torch.eye(C, dtype=torch.float64), 2 * torch.eye(C, dtype=torch.float64)]
    answers = [algorithm.answer("gradient", asked | {"mean": mean}, x, y, 3, memory) for mean in means]
    fresh = algorithm.answer("gradient", asked | {"mean": means[1]}, x, y, 3, {})
    assert torch.equal(answers[1]["weight"], fresh["weight"])
    assert not torch.allclose(answers[0]["weight"], fresh["weight"])


def test_sites_say_sums_and_never_a_trial() -> None:
    """As many numbers go up whether a site holds 10 trials or 1000."""
    for name in ("tangent_lr", "mdm"):
        algorithm = method(name)
        shapes = []
        for n in (10, 1000):
            told: list[Weights] = []
            ask = asking(algorithm, [site(4, n)])

            def listening(question: str, asked: Weights, ask: Ask = ask, told: list[Weights] = told) -> list[Weights]:
                answers = ask(question, asked)
                told += answers
                return answers

            algorithm.fit(listening, 3)
            shapes.append({tuple(sorted((k, tuple(v.shape)) for k, v in answer.items())) for answer in told})
        assert shapes[0] == shapes[1]


def test_tangent_vectors_keep_the_riemannian_distance_to_the_mean() -> None:
    x, mean = SITES[0][0], SITES[1][0].mean(0)
    norms = tangent_vectors(torch.from_numpy(x), torch.from_numpy(mean)).norm(dim=1).numpy()
    assert np.allclose(norms, [distance_riemann(s, mean) for s in x], rtol=1e-8)


def test_sites_may_lack_a_class() -> None:
    sites = [site(1, 30, (0, 1)), site(2, 30, (1, 2)), site(3, 30, (2,))]
    for name in ("tangent_lr", "mdm"):
        algorithm = method(name)
        model = algorithm.model(C, 3)
        model.load(algorithm.fit(asking(algorithm, sites), 3))
        x, y = pooled(sites)
        assert np.mean(model(torch.from_numpy(x)).logits.argmax(1).numpy() == y) > 0.5


def test_a_class_without_any_trial_is_refused_by_mdm_and_never_predicted_by_tangent_lr() -> None:
    with pytest.raises(FedgeoError, match="class number 2 has no training trial at any client"):
        method("mdm").fit(asking(method("mdm"), [site(1, 30, (0, 1))]), 3)
    algorithm = method("tangent_lr")
    model = algorithm.model(C, 3)
    model.load(algorithm.fit(asking(algorithm, [site(1, 30, (0, 1))]), 3))
    assert 2 not in model(torch.from_numpy(NEW)).logits.argmax(1).tolist()


@pytest.mark.parametrize("name", ["tangent_lr", "mdm"])
def test_rank_lost_by_an_average_reference_is_refused_with_the_way_out(name: str) -> None:
    centring = np.eye(C) - 1 / C
    sites = [(centring @ x @ centring, y) for x, y in SITES]
    with pytest.raises(FedgeoError, match=r"rank 5 of 6.*covariances\.estimator=oas") as caught:
        method(name).fit(asking(method(name), sites), 3)
    assert "\n" not in str(caught.value)


def test_untrained_models_know_nothing() -> None:
    """The start is the uniform prediction, the same whatever the generator."""
    for model in (TangentSpace(C, 3), MinimumDistance(C, 3)):
        before = model.export()
        model.reset(torch.Generator().manual_seed(5))
        logits = model(torch.from_numpy(NEW)).logits
        assert torch.equal(logits, logits[:, :1].expand(-1, 3))
        assert all(torch.equal(before[key], value) for key, value in model.export().items())


@pytest.mark.parametrize("value", [0.0, -1.0, "strong"])
def test_a_penalty_that_is_none_is_refused_by_its_key(value: object) -> None:
    with pytest.raises(FedgeoError, match="method.C"):
        method("tangent_lr", C=value)

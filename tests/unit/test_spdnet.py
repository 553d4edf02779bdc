"""SPDnet: its gradients against finite differences, the exchanged weights, and the traps."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from app.common.errors import FedgeoError
from app.geometry.stiefel import distance_to_stiefel, proj_avg, project, random_stiefel, retract, rl_avg
from app.models.spdnet import SPDNet, bimap
from tests.matrices import covariances, differences, generator, normal, with_eigenvalues

EPSILON = 0.1


def tangents(model: SPDNet) -> dict[str, torch.nn.Parameter]:
    """The parameters X that the optimiser moves, by name."""
    return {name: p for name, p in model.named_parameters() if name.endswith(".tangent")}


def small(seed: int = 0, hidden: tuple[int, ...] = (3,), vectorise: str = "vec") -> SPDNet:
    model = SPDNet(5, hidden, 3, EPSILON, vectorise)
    model.reset(generator(seed))
    return model


# ---------------------------------------------------------------- model


@pytest.mark.parametrize(
    ("channels", "hidden", "classes", "vectorise", "count"),
    [
        (60, 22, 7, "vec", 4715),
        (64, 18, 4, "vec", 2452),
        (60, 22, 7, "vech", 3098),
        (64, 18, 4, "vech", 1840),
    ],
)
def test_parameter_counts_are_the_papers(channels: int, hidden: int, classes: int, vectorise: str, count: int) -> None:
    model = SPDNet(channels, [hidden], classes, 1e-2, vectorise)
    assert sum(p.numel() for p in model.parameters()) == count
    assert sum(w.numel() for w in model.export().values()) == count


@pytest.mark.parametrize("vectorise", ["vec", "vech"])
@pytest.mark.parametrize("hidden", [(3,), (4, 4, 2)])
@pytest.mark.parametrize("start", [0.0, 0.7])
def test_training_gradients_against_finite_differences(hidden: tuple[int, ...], vectorise: str, start: float) -> None:
    model = small(1, hidden, vectorise)
    x, y = covariances(6, 5, seed=3, scale=0.12), torch.tensor([0, 1, 2, 0, 1, 2])
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    with torch.no_grad():
        for i, tangent in enumerate(tangents(model).values()):
            tangent.copy_(start * normal(*tangent.shape, seed=10 + i))
    fraction = model.clamped_fraction(x)
    assert 0 < fraction < 1  # some eigenvalues on either side
    loss = F.cross_entropy(functional_call(model, parameters, (x,)).logits, y)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    for (name, p), gradient in zip(parameters.items(), gradients, strict=True):

        def f(v: Tensor, name: str = name) -> Tensor:
            return F.cross_entropy(functional_call(model, parameters | {name: v}, (x,)).logits, y).detach()

        numeric = differences(f, p.detach(), 1e-5)
        assert torch.linalg.norm(gradient - numeric) < 1e-7 * torch.linalg.norm(numeric), name


def test_forward_against_numpy() -> None:
    model = small(2, (4, 3))
    x = covariances(4, 5, seed=0)
    weights = {name: w.numpy() for name, w in model.export().items()}
    for trial, representation, logits in zip(x.numpy(), *model(x), strict=True):
        s = trial
        for name in ("stiefel.0", "stiefel.1"):
            values, vectors = np.linalg.eigh(weights[name].T @ s @ weights[name])
            s = vectors @ np.diag(np.maximum(values, EPSILON)) @ vectors.T
        values, vectors = np.linalg.eigh(s)
        log = vectors @ np.diag(np.log(values)) @ vectors.T
        np.testing.assert_allclose(representation.detach(), log.reshape(-1), atol=1e-12)
        np.testing.assert_allclose(
            logits.detach(), weights["linear.weight"] @ log.reshape(-1) + weights["linear.bias"], atol=1e-12
        )


def test_vech_keeps_inner_products() -> None:
    x = covariances(3, 5, seed=0)
    vec, vech = small(0, vectorise="vec"), small(0, vectorise="vech")
    vech.load(vech.export() | {"stiefel.0": vec.export()["stiefel.0"]})
    a, b = vec(x).representation, vech(x).representation
    assert (a.shape, b.shape) == ((3, 9), (3, 6))
    torch.testing.assert_close(a @ a.mT, b @ b.mT, rtol=1e-13, atol=1e-13)


def test_a_single_trial_and_a_batch_agree() -> None:
    model, x = small(), covariances(3, 5, seed=0)
    torch.testing.assert_close(model(x[1]).logits, model(x).logits[1])
    assert model(x[1]).logits.shape == (3,)


def test_stacked_clients_give_what_each_gives_alone() -> None:
    model = small(0, (4, 3))
    x = torch.stack([covariances(6, 5, seed=s) for s in range(3)])
    stacked = {
        name: torch.stack([p.detach() + 0.1 * normal(*p.shape, seed=s) for s in range(3)]).requires_grad_()
        for name, p in model.named_parameters()
    }
    output = functional_call(model, stacked, (x,))
    gradients = torch.autograd.grad(output.logits.square().sum(), list(stacked.values()))
    for i in range(3):
        alone = {name: p[i].detach().requires_grad_() for name, p in stacked.items()}
        logits = functional_call(model, alone, (x[i],)).logits
        torch.testing.assert_close(output.logits[i], logits, rtol=1e-12, atol=1e-12)
        for gradient, single in zip(
            gradients, torch.autograd.grad(logits.square().sum(), list(alone.values())), strict=True
        ):
            torch.testing.assert_close(gradient[i], single, rtol=1e-10, atol=1e-12)


def train(model: SPDNet, x: Tensor, y: Tensor, steps: int, lr: float = 1e-2) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x).logits, y).backward()
        optimiser.step()


def test_training_stays_on_the_manifold_and_learns() -> None:
    model = small(0, (4, 3))
    gains = torch.linspace(0.2, 2, 5)
    x = torch.cat([covariances(20, 5, seed=1), covariances(20, 5, seed=2) * gains.outer(gains)])
    y = torch.arange(40) // 20
    before = F.cross_entropy(model(x).logits, y).item()
    start = model.export()
    train(model, x, y, 60)
    after = model.export()
    assert F.cross_entropy(model(x).logits, y).item() < 0.5 * before
    for name in ("stiefel.0", "stiefel.1"):
        assert distance_to_stiefel(after[name]) < 1e-12
        assert torch.linalg.norm(after[name] - start[name]) > 0.05


def test_a_round_starts_at_the_received_weights() -> None:
    model, x = small(0, (4, 3)), covariances(20, 5, seed=1)
    train(model, x, torch.arange(20) % 3, 5)
    sent, logits = model.export(), model(x).logits
    other = small(9, (4, 3))
    other.load(sent)
    assert all(torch.count_nonzero(p) == 0 for p in tangents(other).values())
    for name, w in other.export().items():
        torch.testing.assert_close(w, sent[name], rtol=0, atol=1e-14)
    torch.testing.assert_close(other(x).logits, logits, rtol=0, atol=1e-12)
    assert list(sent) == ["stiefel.0", "stiefel.1", "linear.weight", "linear.bias"]
    assert all(not w.requires_grad and w.dtype == torch.float64 for w in sent.values())


def test_exported_weights_are_copies() -> None:
    model = small()
    sent = model.export()
    kept = copy.deepcopy(sent)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    assert all(torch.equal(sent[name], kept[name]) for name in sent)


def test_reset_is_repeatable_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    a, b, c = small(3), small(3), small(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a.export()[name], b.export()[name]) for name in a.export())
    assert not torch.equal(a.export()["stiefel.0"], c.export()["stiefel.0"])


def test_unfit_weights_are_refused() -> None:
    model = small()
    sent = model.export()
    with pytest.raises(KeyError, match=r"stiefel\.0\.tangent"):
        model.load({"stiefel.0.tangent" if name == "stiefel.0" else name: w for name, w in sent.items()})
    with pytest.raises(ValueError, match=r"stiefel\.0: expected shape \(5, 3\)"):
        model.load(sent | {"stiefel.0": sent["stiefel.0"][:, :2]})
    with pytest.raises(FedgeoError, match=r"stiefel\.0: off the Stiefel manifold"):
        model.load(sent | {"stiefel.0": 0.9 * sent["stiefel.0"]})
    with pytest.raises(FedgeoError, match=r"stiefel\.0: off the Stiefel manifold"):
        model.load(sent | {"stiefel.0": torch.full((5, 3), math.nan)})
    assert all(torch.equal(w, sent[name]) for name, w in model.export().items() if name.startswith("linear"))


def test_weights_that_travelled_in_single_precision_are_taken() -> None:
    model = small()
    model.load({name: w.float() for name, w in model.export().items()})
    assert distance_to_stiefel(model.export()["stiefel.0"]) < 1e-12


def test_bad_settings_and_inputs_are_refused() -> None:
    for hidden in ([], [6], [3, 4], [0]):
        with pytest.raises(FedgeoError, match="widths"):
            SPDNet(5, hidden, 3, EPSILON)
    with pytest.raises(FedgeoError, match="epsilon"):
        SPDNet(5, [3], 3, 0.0)
    with pytest.raises(FedgeoError, match="vec, vech"):
        SPDNet(5, [3], 3, EPSILON, "half")
    model, x = small(), covariances(2, 5, seed=0)
    with pytest.raises(FedgeoError, match="float64, got float32"):
        model(x.float())
    with pytest.raises(FedgeoError, match="5 channels"):
        model(covariances(2, 4, seed=0))
    x[1, 2, 3] = math.nan
    with pytest.raises(FedgeoError, match="not finite"):
        model(x)


# ---------------------------------------------------------------- traps


def local_round(clients: int, steps: int) -> tuple[SPDNet, list[SPDNet]]:
    start = small(0, (4,))
    models = []
    for c in range(clients):
        model = copy.deepcopy(start)
        train(
            model,
            covariances(30, 5, seed=c),
            torch.randint(0, 3, (30,), generator=generator(c)),
            steps,
            lr=3e-2,
        )
        models.append(model)
    return start, models


def test_averaging_the_optimisers_parameter_is_not_averaging_weights() -> None:
    start, models = local_round(4, steps=40)
    w0 = start.export()["stiefel.0"]
    ws = [m.export()["stiefel.0"] for m in models]
    raw = torch.stack([next(iter(tangents(m).values())).detach() for m in models]).mean(0)
    averaged_raw = retract(w0, project(w0, raw))
    assert torch.linalg.norm(averaged_raw - proj_avg(ws)) > 0.01
    assert torch.linalg.norm(rl_avg(w0, ws) - proj_avg(ws)) < torch.linalg.norm(averaged_raw - proj_avg(ws))
    assert not any("tangent" in name for name in models[0].export())


def test_the_plain_mean_leaves_the_manifold_and_is_refused() -> None:
    start, models = local_round(4, steps=40)
    sent = [m.export() for m in models]
    mean = {name: torch.stack([s[name] for s in sent]).mean(0) for name in sent[0]}
    assert distance_to_stiefel(mean["stiefel.0"]) > 1e-2
    with pytest.raises(FedgeoError, match="projavg or rlavg"):
        start.load(mean)
    start.load(mean | {"stiefel.0": proj_avg([s["stiefel.0"] for s in sent])})
    assert distance_to_stiefel(start.export()["stiefel.0"]) < 1e-12


def test_a_turned_twin_is_the_same_model_but_averages_to_nonsense() -> None:
    model, x = small(5), covariances(50, 5, seed=0)
    sent = model.export()
    r = random_stiefel(3, 3, generator(1))
    turned = {
        "stiefel.0": sent["stiefel.0"] @ r,
        "linear.weight": (r.mT @ sent["linear.weight"].reshape(3, 3, 3) @ r).reshape(3, 9),
        "linear.bias": sent["linear.bias"],
    }
    twin = small()
    twin.load(turned)
    logits = model(x).logits.detach()
    torch.testing.assert_close(twin(x).logits, logits, rtol=0, atol=1e-12)
    merged = {name: 0.5 * (sent[name] + turned[name]) for name in sent}
    twin.load(merged | {"stiefel.0": proj_avg([sent["stiefel.0"], turned["stiefel.0"]])})
    assert torch.linalg.norm(twin(x).logits - logits) > 0.1 * torch.linalg.norm(logits - logits.mean(0))


def test_volts_clamp_everything_and_nothing_can_be_learned() -> None:
    model, x = small(), covariances(20, 5, seed=0, scale=100.0)
    assert model.clamped_fraction(x) == 0.0
    assert model.clamped_fraction(1e-12 * x) == 1.0
    F.cross_entropy(model(1e-12 * x).logits, torch.arange(20) % 3).backward()
    (tangent,) = tangents(model).values()
    assert tangent.grad is not None
    assert torch.count_nonzero(tangent.grad) == 0


def test_clamped_fraction_counts_eigenvalues_at_or_below_epsilon() -> None:
    model = SPDNet(4, [4], 2, 0.5)
    x = torch.stack([with_eigenvalues([0.1, 0.2, 0.6, 1.0]), with_eigenvalues([0.6, 0.7, 0.8, 0.9])])
    assert model.clamped_fraction(x) == pytest.approx(2 / 8)


def test_weight_decay_can_leave_the_stiefel_parameters_out() -> None:
    model = small(0, (4, 3))
    assert set(tangents(model)) == {"stiefel.0.tangent", "stiefel.1.tangent"}
    spared = tangents(model)
    groups = [
        {"params": list(spared.values()), "weight_decay": 0.0},
        {"params": [p for name, p in model.named_parameters() if name not in spared], "weight_decay": 0.5},
    ]
    with torch.no_grad():
        for p in spared.values():
            p.copy_(normal(*p.shape, seed=1))
    before = model.export()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    torch.optim.SGD(groups, lr=0.1).step()
    after = model.export()
    assert torch.equal(after["stiefel.0"], before["stiefel.0"])
    torch.testing.assert_close(after["linear.weight"], 0.95 * before["linear.weight"])


def test_rank_lost_by_average_reference_still_gives_definite_blocks() -> None:
    centre = torch.eye(5, dtype=torch.float64) - 0.2
    x = centre @ covariances(8, 5, seed=0) @ centre
    assert torch.linalg.matrix_rank(x[0]) == 4
    model = SPDNet(5, [4], 3, 1e-6)
    assert torch.linalg.eigvalsh(bimap(x, model.export()["stiefel.0"])).min() > 1e-3
    assert model.clamped_fraction(x) == 0.0


def test_without_the_manifold_weights_are_plain_matrices() -> None:
    model = SPDNet(5, [4, 3], 3, EPSILON, stiefel=False)
    model.reset(generator(0))
    on_manifold = SPDNet(5, [4, 3], 3, EPSILON)
    on_manifold.reset(generator(0))
    x = covariances(20, 5, seed=0)
    torch.testing.assert_close(model(x).logits, on_manifold(x).logits, rtol=0, atol=1e-12)  # the same start
    assert list(model.export()) == ["bimap.0.matrix", "bimap.1.matrix", "linear.weight", "linear.bias"]
    assert tangents(model) == {}
    train(model, x, torch.arange(20) % 3, 10)
    assert distance_to_stiefel(model.export()["bimap.0.matrix"]) > 1e-3
    other = SPDNet(5, [4, 3], 3, EPSILON, stiefel=False)
    other.load(model.export())
    torch.testing.assert_close(other(x).logits, model(x).logits, rtol=0, atol=0)

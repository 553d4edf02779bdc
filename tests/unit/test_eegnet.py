"""EEGNet: the paper's counts, the reordered first layers against the plain ones, and what stays with the
client."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from app.common.errors import FedgeoError
from app.models.eegnet import EEGNet, _window_moments


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trials(n: int, channels: int, samples: int, seed: int) -> Tensor:
    """Smooth signals with z-scores, as EEGNet gets them."""
    x = torch.randn(n, channels, samples + 8, dtype=torch.float64, generator=generator(seed)).unfold(-1, 9, 1).mean(-1)
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


class Plain(nn.Module):
    """The layers one after the other, as the paper draws them."""

    def __init__(self, model: EEGNet) -> None:
        super().__init__()
        f1, kt = model.temporal.shape
        f1d, channels = model.spatial.shape
        f2, ks = len(model.pointwise), model.depthwise.shape[-1]
        self.layers = nn.Sequential(
            nn.ZeroPad2d(((kt - 1) // 2, kt // 2, 0, 0)),
            nn.Conv2d(1, f1, (1, kt), bias=False),
            nn.BatchNorm2d(f1),
            nn.Conv2d(f1, f1d, (channels, 1), groups=f1, bias=False),
            nn.BatchNorm2d(f1d),
            nn.ELU(),
            nn.AvgPool2d((1, model.pools[0])),
            nn.ZeroPad2d(((ks - 1) // 2, ks // 2, 0, 0)),
            nn.Conv2d(f1d, f1d, (1, ks), groups=f1d, bias=False),
            nn.Conv2d(f1d, f2, 1, bias=False),
            nn.BatchNorm2d(f2),
            nn.ELU(),
            nn.AvgPool2d((1, model.pools[1])),
            nn.Flatten(),
            nn.Linear(model.linear.in_features, model.linear.out_features),
        )
        self.to(model.temporal.dtype)
        ours = list(model.named_parameters())
        order = [
            "temporal",
            "norm1.weight",
            "norm1.bias",
            "spatial",
            "norm2.weight",
            "norm2.bias",
            "depthwise",
            "pointwise",
        ]
        order += ["norm3.weight", "norm3.bias", "linear.weight", "linear.bias"]
        assert sorted(order) == sorted(name for name, _ in ours)
        self.order = order
        with torch.no_grad():
            for name, p in zip(order, self.parameters(), strict=True):
                p.copy_(dict(ours)[name].view_as(p))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.unsqueeze(1))


def shaken(model: EEGNet, seed: int) -> EEGNet:
    """The model with affine parameters that are not all 1 and 0."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("norm"):
                p.add_(0.3 * torch.randn(p.shape, generator=generator(seed)))
    return model


@pytest.mark.parametrize(
    ("channels", "samples", "classes", "rate", "kernels", "count"),
    [(60, 801, 7, 200, (100, 25), 5303), (64, 481, 4, 160, (80, 20), 3284)],
)
def test_counts_are_the_papers(
    channels: int, samples: int, classes: int, rate: float, kernels: tuple[int, int], count: int
) -> None:
    model = EEGNet(channels, samples, classes, rate)
    assert sum(p.numel() for p in model.parameters()) == count
    assert sum(w.numel() for w in model.export().values()) == count
    assert (model.temporal.shape[-1], model.depthwise.shape[-1]) == kernels


def test_slow_recordings_get_the_smallest_kernels() -> None:
    model = EEGNet(3, 64, 2, 20)
    assert (model.temporal.shape[-1], model.depthwise.shape[-1]) == (32, 8)


@pytest.mark.parametrize(
    "samples", [70, 128, 64, 33, 40]
)  # kernel 32: blocks that divide the trial and blocks that do not
def test_training_pass_is_the_plain_one(samples: int) -> None:
    model = shaken(EEGNet(5, samples, 3, 60, dropout=0.0, pools=(4, 4)).double(), seed=1)
    plain = Plain(model)
    x, y = trials(6, 5, samples, seed=0), torch.arange(6) % 3
    x = x + 0.3  # z-scores have mean 0, but nothing may rest on it
    output = model(x).logits
    expected = plain(x)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    F.cross_entropy(output, y).backward()
    F.cross_entropy(expected, y).backward()
    ours = dict(model.named_parameters())
    for name, p in zip(plain.order, plain.parameters(), strict=True):
        gradient, other = ours[name].grad, p.grad
        assert gradient is not None
        assert other is not None
        torch.testing.assert_close(gradient, other.view_as(gradient), rtol=1e-7, atol=1e-10)
    buffers = zip(model.buffers(), plain.buffers(), strict=True)
    for mine, theirs in buffers:
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    model.eval()
    plain.eval()
    torch.testing.assert_close(model(x).logits, plain(x), rtol=1e-9, atol=1e-9)


def test_single_precision_is_as_good_as_the_plain_pass() -> None:
    model = shaken(EEGNet(16, 321, 3, 160, dropout=0.0), seed=1)
    plain, exact = Plain(model), Plain(copy.deepcopy(model).double())
    x = trials(16, 16, 321, seed=0)
    reference = exact(x)
    ours = (model(x.float()).logits - reference).abs().max()
    theirs = (plain(x.float()) - reference).abs().max()
    assert ours < max(5 * theirs, 1e-5)


def test_window_moments_count_every_window_once() -> None:
    x = trials(2, 3, 45, seed=0)
    windows = F.pad(x, (15, 16)).unfold(-1, 32, 1).reshape(-1, 32)
    mean, second = _window_moments(x, 32)
    assert len(windows) == x.numel()
    torch.testing.assert_close(mean, windows.mean(0))
    torch.testing.assert_close(second, windows.mT @ windows / len(windows))


def test_representation_feeds_the_linear_layer() -> None:
    model = EEGNet(5, 128, 3, 60).eval()
    output = model(trials(4, 5, 128, seed=0).float())
    assert output.representation.shape == (4, 16 * 4)
    torch.testing.assert_close(model.linear(output.representation), output.logits)


def test_dropout_draws_from_the_models_generator_only() -> None:
    model = EEGNet(5, 128, 3, 60)
    x = trials(4, 5, 128, seed=0).float()
    with pytest.raises(RuntimeError, match=r"model\.generator"):
        model(x)
    state = torch.get_rng_state()
    outputs = []
    for seed in (7, 7, 8):
        model.generator = generator(seed)
        outputs.append(model(x).logits.detach())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    model.eval()
    assert torch.equal(model(x).logits, model(x).logits)


def test_dropout_keeps_the_expected_share_and_the_mean() -> None:
    model = EEGNet(5, 128, 3, 60, dropout=0.25)
    model.generator = generator(0)
    dropped = model._drop(torch.ones(200_000), dropping=True)
    assert float((dropped == 0).double().mean()) == pytest.approx(0.25, abs=0.005)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.01)


def test_reset_is_repeatable_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    a, b = EEGNet(5, 128, 3, 60), EEGNet(5, 128, 3, 60)
    a.reset(generator(1))
    b.calibrate(trials(8, 5, 128, seed=3).float())
    b.reset(generator(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, b.state_dict()[name]) for name, v in a.state_dict().items())
    b.reset(generator(2))
    assert not torch.equal(a.temporal, b.temporal)


def fit(model: EEGNet, x: Tensor, y: Tensor, steps: int, seed: int) -> None:
    model.train()
    model.generator = generator(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x).logits, y).backward()
        optimiser.step()
    model.eval()


def test_running_statistics_are_never_exchanged() -> None:
    model = EEGNet(5, 128, 3, 60)
    fit(model, trials(12, 5, 128, seed=0).float(), torch.arange(12) % 3, 3, seed=0)
    sent, kept = model.export(), model.local_state()
    assert not sent.keys() & kept.keys()
    assert {name for name in sent if name.startswith("norm")} == {
        f"norm{i}.{kind}" for i in (1, 2, 3) for kind in ("weight", "bias")
    }
    other = EEGNet(5, 128, 3, 60)
    before = other.local_state()
    other.load(sent)
    assert all(torch.equal(v, before[name]) for name, v in other.local_state().items())
    assert any(not torch.equal(v, before[name]) for name, v in kept.items())


def test_global_weights_with_a_clients_own_statistics() -> None:
    """FedBN: two clients share averaged weights, and each predicts with its own statistics."""
    models = []
    for seed in (0, 1):
        model = EEGNet(5, 128, 3, 60)
        x = trials(12, 5, 128, seed=seed).float() * (1 + seed)
        fit(model, x, torch.arange(12) % 3, 5, seed=seed)
        models.append(model)
    sent = [m.export() for m in models]
    mean = {name: 0.5 * (sent[0][name] + sent[1][name]) for name in sent[0]}
    states = [m.local_state() for m in models]
    x = trials(4, 5, 128, seed=9).float()
    logits = []
    for state in states:
        fresh = EEGNet(5, 128, 3, 60).eval()
        fresh.load(mean)
        fresh.load_local_state(state)
        assert all(torch.equal(v, state[name]) for name, v in fresh.local_state().items())
        logits.append(fresh(x).logits)
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)
    fresh.load_local_state({})
    assert torch.equal(fresh(x).logits, logits[1])
    with pytest.raises(KeyError, match="running_mean"):
        fresh.load_local_state({"norm1.running_mean": states[0]["norm1.running_mean"]})


def test_calibration_takes_the_statistics_of_the_given_trials() -> None:
    model = shaken(EEGNet(5, 128, 3, 60).double(), seed=1).eval()
    x = trials(40, 5, 128, seed=0) * 3 + 1
    weights = model.export()
    plain = Plain(model)
    model.calibrate(x)
    assert not model.training
    assert model.norm1.momentum == 0.1
    assert all(torch.equal(w, weights[name]) for name, w in model.export().items())
    # batch statistics divide by n, running ones by n - 1: alike to about 1 / n
    torch.testing.assert_close(model(x).logits, plain(x), rtol=0, atol=5e-3)
    once = model.local_state()
    model.calibrate(trials(10, 5, 128, seed=2))
    model.calibrate(x)
    for name, value in model.local_state().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(value, once[name], rtol=0, atol=0)  # nothing is left of what was before


def test_parameters_may_be_passed_functionally() -> None:
    model = EEGNet(5, 128, 3, 60).eval()
    x = trials(4, 5, 128, seed=0).float()
    other = EEGNet(5, 128, 3, 60).eval()
    other.reset(generator(5))
    torch.testing.assert_close(functional_call(model, dict(other.named_parameters()), (x,)).logits, other(x).logits)


def test_training_learns_a_frequency() -> None:
    t = torch.arange(128) / 128
    x = 0.7 * trials(60, 5, 128, seed=0).float()
    y = torch.arange(60) % 2
    x = x + torch.sin(2 * math.pi * (6 + 8 * y.float()).view(-1, 1, 1) * t)
    model = EEGNet(5, 128, 2, 128)
    fit(model, x, y, 30, seed=0)
    assert float((model(x).logits.argmax(1) == y).double().mean()) > 0.9


def test_copies_are_independent() -> None:
    model = EEGNet(5, 128, 3, 60)
    model.generator = generator(0)
    twin = copy.deepcopy(model)
    fit(twin, trials(12, 5, 128, seed=0).float(), torch.arange(12) % 3, 1, seed=0)
    assert not torch.equal(twin.temporal, model.temporal)
    assert torch.count_nonzero(model.local_state()["norm1.running_mean"]) == 0


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(FedgeoError, match="31 samples"):
        EEGNet(5, 31, 3, 60)
    model = EEGNet(5, 128, 3, 60)
    with pytest.raises(FedgeoError, match=r"\(batch, 5, 128\), got \(2, 5, 120\)"):
        model(torch.zeros(2, 5, 120))

"""steps=equal: the plan from counts alone is what augmented sets come to, and every arm takes that many steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import app.client.node
from app.augmentation.equal_steps import planned_counts, planned_steps
from app.augmentation.sources import Filling
from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.images.dataset import image_dataset
from app.geometry.class_geometry import geometry
from app.geometry.class_statistics import gather, merge
from tests.augmented import augmented_set
from tests.running import rounds, run_in_process

SHORT = ("training=plain", "federation.rounds=1", "training.epochs=3", "augmentation.target=30")


def test_the_plan_by_hand() -> None:
    counts = np.array([[5, 0, 0], [12, 1, 0]])
    filled = Filling(target=10)
    assert planned_counts(counts, filled, [None, None]).tolist() == [[10, 10, 0], [12, 10, 0]]
    skipped = Filling(target=10, absent="skip")
    assert planned_counts(counts, skipped, [None, None]).tolist() == [[10, 0, 0], [12, 10, 0]]
    prototypes = Filling(target=10, step2=True, per_prototype=3)
    assert planned_counts(counts, prototypes, ["a", "b"]).tolist() == [[13, 13, 0], [15, 10, 0]]
    assert planned_counts(counts, prototypes, ["a", "a"]).tolist() == [[10, 10, 0], [12, 10, 0]]
    assert planned_steps(np.array([[13, 13, 0], [15, 10, 0]]), epochs=2, batch_size=8).tolist() == [8, 8]
    with pytest.raises(FedgeoError, match="one domain a client"):
        planned_counts(counts, filled, [None])


@settings(max_examples=60)
@given(
    counts=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=2, max_size=4),
    target=st.integers(1, 12),
    absent=st.sampled_from(["global_mean", "skip"]),
    step2=st.booleans(),
    domains=st.lists(st.sampled_from(["a", "b", None]), min_size=4, max_size=4),
    kind=st.sampled_from(["repeat", "ggeur"]),
    seed=st.integers(0, 99),
)
def test_the_plan_is_what_augmented_sets_come_to(
    counts: list[list[int]],
    target: int,
    absent: str,
    step2: bool,
    domains: list[str | None],
    kind: str,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    labels = [np.repeat(np.arange(3), row) for row in counts]
    samples = [rng.normal(size=(len(y), 2)).astype(np.float32) for y in labels]
    shared = {k: gather(x, y) for k, (x, y) in enumerate(zip(samples, labels, strict=True))}
    shapes = geometry(merge(shared.values()), prototypes=shared if step2 else None)
    chosen = {"target": target, "absent": absent, "step2": step2, "per_prototype": 5}
    domains = domains[: len(counts)]
    planned = planned_counts(np.array(counts), Filling(**chosen), domains)
    for k, (x, y) in enumerate(zip(samples, labels, strict=True)):
        own = {k, *(j for j, other in enumerate(domains) if other is not None and other == domains[k])}
        made = augmented_set(kind, x, y, shapes, classes=3, seed=1, client=k, own=own, **chosen)
        assert planned[k].tolist() == made.counts.tolist()
        if len(made):
            batches = list(made.batches(4, torch.Generator().manual_seed(0)))
            assert planned_steps(planned, 1, 4)[k] == len(batches)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The gradient steps of every participation, in order."""
    steps: list[int] = []
    original: Callable[..., Any] = app.client.node.train

    def train(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        steps.append(result.steps)
        return result

    monkeypatch.setattr(app.client.node, "train", train)
    return steps


def test_every_arm_takes_the_steps_of_the_augmented_one(tmp_path: Path, taken: list[int]) -> None:
    run_in_process(tmp_path / "own", *SHORT, "augmentation=ggeur")
    augmented = taken.copy()
    taken.clear()
    for arm in ("none", "fedmix"):
        run_in_process(tmp_path / arm, *SHORT, f"augmentation={arm}", "steps=equal")
        assert taken == augmented
        taken.clear()
    run_in_process(tmp_path / "none-own", *SHORT, "augmentation=none")
    assert taken != augmented
    dataset = image_dataset(load(" ".join(SHORT)))
    assert taken[:10] == [3 * -(-len(dataset.train(k)) // 64) for k in range(10)]


def test_the_augmented_arm_itself_does_not_change(tmp_path: Path) -> None:
    run_in_process(tmp_path / "own", *SHORT)
    run_in_process(tmp_path / "equal", *SHORT, "steps=equal", nodes=3)
    assert rounds(tmp_path / "own") == rounds(tmp_path / "equal")


def test_partial_participation_keeps_each_client_s_own_number(tmp_path: Path, taken: list[int]) -> None:
    options = (*SHORT, "federation.rounds=2", "federation.participation=0.3", "augmentation.target=5")
    run_in_process(tmp_path / "own", *options, "augmentation=repeat")
    augmented = taken.copy()
    taken.clear()
    run_in_process(tmp_path / "equal", *options, "augmentation=none", "steps=equal", nodes=4)
    assert len(taken) == 6
    assert sorted(taken) == sorted(augmented)
    assert len(set(taken)) > 1

"""Base methods over the grid: state that outlives skipped rounds, refusals by name, a method from outside."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from app.algorithms import registry
from app.common.errors import FedgeoError
from app.config.combinations import expand
from app.config.compose import load
from app.config.schema import Config
from app.data.images.dataset import image_dataset
from app.launch.job import plan
from app.models.linear import Head
from app.training.plain import LocalSettings
from tests.running import rounds, run_in_process
from tests.small_federation import Federation, FixedOrder, distance

# a batch holds a client's whole set, so that the order of its samples is no difference
WHOLE = (
    "augmentation=none",
    "training.batch_size=2000",
    "training.epochs=4",
    "training.lr=0.1",
    "federation.weights=real",
)
SKIPPING = (*WHOLE, "federation.participation=0.4", "federation.rounds=7")


def same_federation(config: Config) -> Federation:
    """The federation of ``config`` as the small pure one."""
    dataset = image_dataset(config)
    model = Head(dataset.inputs["dimension"], len(dataset.classes))
    model.reset(torch.Generator())
    training = config.training
    return Federation(
        registry.load(config.method.target, **config.method.settings),
        lambda: Head(dataset.inputs["dimension"], len(dataset.classes)),
        [FixedOrder(torch.from_numpy(dataset.train(k).x), torch.from_numpy(dataset.train(k).y)) for k in range(10)],
        LocalSettings(
            training.epochs,
            training.batch_size,
            training.optimiser,
            training.lr,
            training.momentum,
            training.weight_decay,
        ),
        model.export(),
    )


def participants(seed: int, number: int) -> list[list[int]]:
    """Four of ten clients a round, as a run of this seed draws them."""
    drawn = [np.random.default_rng([seed, r]).choice(10, size=4, replace=False) for r in range(1, number + 1)]
    return [sorted(map(int, each)) for each in drawn]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "feddyn", "moon", "fedproto", "fedopt", "fedavgm"])
def test_state_outlives_skipped_rounds_and_shared_nodes(tmp_path: Path, method: str) -> None:
    """Clients that come back after rounds away go on from what they kept, with several of them on a node."""
    options = (*SKIPPING, f"method={method}")
    run_in_process(tmp_path / "run", *options, nodes=3)
    found = load_file(tmp_path / "run" / "model-final.safetensors")
    config = load(" ".join(options))
    plan = participants(config.seed, 7)
    took_part = {k: [r for r, chosen in enumerate(plan) if k in chosen] for k in range(10)}
    gaps = [b - a for rounds_of in took_part.values() for a, b in pairwise(rounds_of)]
    assert max(gaps) > 2, "somebody must stay away for more than two rounds"
    kept = same_federation(config)
    kept.run(plan)
    assert distance(found, kept.weights) < 1e-6
    whose = "client" if method in ("scaffold", "feddyn", "moon") else "server"
    lost = same_federation(config)
    lost.forget = whose  # type: ignore[assignment]
    lost.run(plan)
    assert distance(found, lost.weights) > 1e-4


def test_a_method_from_outside_needs_its_class_alone(tmp_path: Path) -> None:
    options = (*WHOLE, "federation.rounds=3", "method.name=damped", "method.target=tests.outside_method:Damped")
    summary = run_in_process(tmp_path / "run", *options, "+method.share=0.25", nodes=2)
    assert (summary["method"], summary["status"]) == ("damped", "completed")
    config = load(" ".join([*options, "+method.share=0.25"]))
    pure = same_federation(config)
    pure.run([list(range(10))] * 3)
    assert distance(load_file(tmp_path / "run" / "model-final.safetensors"), pure.weights) < 1e-6
    run_in_process(tmp_path / "plain", *WHOLE, "federation.rounds=3")
    assert rounds(tmp_path / "run") != rounds(tmp_path / "plain")
    with pytest.raises(FedgeoError, match=r"method\.share=-1: must be greater than 0"):
        run_in_process(tmp_path / "bad", *options, "+method.share=-1")


def test_a_method_from_outside_may_bring_its_yaml(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "method"
    folder.mkdir(parents=True)
    (folder / "damped.yaml").write_text("name: damped\ntarget: tests.outside_method:Damped\nshare: 0.25\n")
    options = (f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "method=damped", "federation.rounds=1", *WHOLE)
    summary = run_in_process(tmp_path / "run", *options)
    assert (summary["method"], summary["status"]) == ("damped", "completed")
    assert load(" ".join(options)).method.settings == {"share": 0.25}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("method=scaffold training.optimiser=adam", "training.optimiser=adam: method=scaffold is derived for sgd"),
        ("method=centralised engine=deployment", "method=centralised .*engine=deployment"),
        ("method=projavg", "method=projavg .*model=linear"),
        ("method=feddyn method.alpha=0", "method.alpha=0"),
        ("method=fedprox +method.alpha=1", "method.alpha: FedProx has no such parameter"),
        ("method=fedmedian +method.mu=1", "method.mu: fedmedian has no such setting"),
        ("method.target=tests.outside_method:Nothing", "method.target=tests.outside_method:Nothing"),
        ("augmentation=fedmix augmentation.mix=1", "augmentation.mix=1: must be less than 1"),
        ("steps=equal privacy.min_count=3", "steps=equal compares arms by the clients' true counts"),
        ("steps=equal engine=deployment", "steps=equal compares arms by the clients' true counts"),
        ("steps=more", "steps=more: must be 'own' or 'equal'"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_starts(words: str, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        plan(words.split())


def test_fedntd_refuses_two_classes_before_anything_starts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "two.npz"
    np.savez(file, one_X=rng.normal(size=(60, 5)).astype(np.float32), one_y=np.arange(60) % 2)
    words = ["data=features", f"data.path={file}", "federation.partition=iid", "federation.clients=3"]
    with pytest.raises(FedgeoError, match="method=fedntd must have at least 3 classes, data=features has 2"):
        plan([*words, "method=fedntd"])
    assert plan([*words, "method=fedavg"]).config.method.name == "fedavg"


def test_a_sweep_over_methods_is_planned_whole() -> None:
    jobs = [plan(chosen) for chosen, _ in expand(["method=moon,fedntd,fedtrimmedavg", "augmentation=fedfa,fedmix"])]
    assert len({(job.config.method.name, job.config.augmentation.kind) for job in jobs}) == 6

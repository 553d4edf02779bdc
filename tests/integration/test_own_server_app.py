"""A ServerApp that knows nothing of fedgeo but a strategy, and stock strategies, over our ClientApp in this process."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedMedian, Krum, Strategy
from safetensors.numpy import load_file

import client_app
from app.client.node import node
from app.common.errors import FedgeoError
from app.config.compose import load
from app.grids.in_process import InProcessGrid
from app.strategies import GGEUR, FedgeoStrategy
from app.training.plain import predict
from tests.conftest import ROOT
from tests.running import run_in_process

EXAMPLE = ROOT / "docs" / "examples" / "own_server_app"
SHORT = "federation.rounds=3 training.epochs=1 model.init=zeros"
STOCK = f"{SHORT} augmentation=none training.lr=0.1"
LEARNS = f"{STOCK} federation.partition=iid training.lr=0.5"


def grid_of(folder: Path, overrides: str, nodes: int = 3) -> InProcessGrid:
    """Nodes whose settings are the run's configuration alone."""
    words = f"{overrides} run_dir={folder}"
    return InProcessGrid(client_app.app, {"experiment": "quickstart", "overrides": words}, nodes=nodes)


def initial(grid: InProcessGrid) -> ArrayRecord:
    """The model's initial weights, asked for with nothing but Flower."""
    (reply,) = grid.send_and_receive([Message(RecordDict(), next(iter(grid.get_node_ids())), "query.initial")])
    return reply.content.array_records["arrays"]


def numpy_of(record: ArrayRecord | None) -> dict[str, np.ndarray]:
    assert record is not None
    return {name: array.numpy() for name, array in record.items()}


@pytest.mark.parametrize(("base", "target"), [("fedavg", "FedAvg"), ("fedadam", "FedAdam")])
def test_the_example_gives_the_arrays_of_a_run_to_the_bit(tmp_path: Path, base: str, target: str) -> None:
    lines = (EXAMPLE / "server_app.py").read_text().splitlines()
    assert len(lines) <= 40 and sum("fedgeo" in line and "import" in line for line in lines) == 1
    spec = importlib.util.spec_from_file_location("own_server_app", EXAMPLE / "server_app.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    settings = {"base": base, "num-server-rounds": 3}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=settings)
    example.app(grid_of(tmp_path / "own", SHORT), context)
    own = numpy_of(context.state.array_records["arrays"])

    run_in_process(tmp_path / "run", *SHORT.split(), f"method.target=flwr.serverapp.strategy:{target}", nodes=2)
    expected = load_file(tmp_path / "run" / "model-final.safetensors")
    assert own.keys() == expected.keys()
    for name, value in expected.items():
        assert own[name].dtype == value.dtype and np.array_equal(own[name], value)
        assert np.abs(value).max() > 1e-3  # it has learned


@pytest.mark.parametrize("nodes", [1, 3, 10])
def test_stock_fedavg_over_nodes_is_fedavg_over_clients(tmp_path: Path, nodes: int) -> None:
    grid = grid_of(tmp_path / "stock", STOCK, nodes)
    least = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
    found = numpy_of(FedAvg(**least).start(grid, initial(grid), num_rounds=3).arrays)
    run_in_process(tmp_path / "run", *STOCK.split())
    for name, value in load_file(tmp_path / "run" / "model-final.safetensors").items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "strategy", [FedAvg(), FedAvgM(server_momentum=0.9), FedMedian(), Krum(num_malicious_nodes=1)], ids=type
)
def test_stock_strategies_run_and_learn(tmp_path: Path, strategy: Strategy) -> None:
    grid = grid_of(tmp_path, LEARNS, nodes=5)
    result = strategy.start(grid, initial(grid), num_rounds=3)
    assert sorted(result.train_metrics_clientapp) == sorted(result.evaluate_metrics_clientapp) == [1, 2, 3]
    losses = [float(result.evaluate_metrics_clientapp[number]["loss"]) for number in (1, 2, 3)]
    assert losses[2] < losses[1] < losses[0] < np.log(10)  # of a model that knows nothing


def test_the_nodes_parts_of_a_central_test_set_give_its_exact_accuracy(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, STOCK, nodes=3)
    result = FedAvg().start(grid, initial(grid), num_rounds=1)
    config = load(f"{STOCK} run_dir={tmp_path}", experiment="quickstart")
    here = node(config, (0, 1), tmp_path / "state")
    model, test = here.model(), here.dataset.held_out("test", None)
    model.load({name: torch.from_numpy(value) for name, value in numpy_of(result.arrays).items()})
    exact = float((predict(model, test.x).argmax(axis=1) == test.y).mean())
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(exact, abs=1e-12)


def test_a_stock_reply_has_one_record_of_each_kind_and_the_same_keys_at_every_node(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, STOCK, nodes=3)
    arrays = initial(grid)
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    replies = grid.send_and_receive([Message(content, node_id, "train") for node_id in grid.get_node_ids()])
    for reply in replies:
        assert sorted(reply.content) == ["arrays", "metrics"]
        assert sorted(reply.content.metric_records["metrics"]) == ["num-examples", "train_loss"]
        assert reply.content.array_records["arrays"].keys() == arrays.keys()
    examples = [reply.content.metric_records["metrics"]["num-examples"] for reply in replies]
    config = load(f"{STOCK} run_dir={tmp_path}", experiment="quickstart")
    whole = node(config, (0, 1), tmp_path / "state")
    assert all(isinstance(n, float) for n in examples)
    assert sum(examples) == sum(len(whole.dataset.train(client)) for client in range(10))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (f"{STOCK} method=scaffold", "method=scaffold has a server step of its own: choose method=fedavg"),
        (f"{STOCK} method=local", "method=local has no rounds of shared training"),
        (SHORT, "augmentation=ggeur needs all clients' statistics before the rounds: wrap the strategy"),
    ],
)
def test_what_needs_more_than_a_mean_is_refused_in_a_line(tmp_path: Path, overrides: str, reason: str) -> None:
    grid = grid_of(tmp_path, overrides, nodes=1)
    content = RecordDict({"arrays": initial(grid), "config": ConfigRecord({"server-round": 1})})
    for kind in ("train", "evaluate"):
        (reply,) = grid.send_and_receive([Message(content, 1000, kind)])
        assert reply.has_error() and reason in reply.error.reason and "\n" not in reply.error.reason


def test_a_learning_rate_of_the_message_goes_before_that_of_the_configuration(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, f"{STOCK} training.lr=0.2", nodes=1)
    arrays, found = initial(grid), []
    for config in ({"server-round": 1}, {"server-round": 1, "lr": 0.2}, {"server-round": 1, "lr": 0.1}):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
        (reply,) = grid.send_and_receive([Message(content, 1000, "train")])
        found.append(numpy_of(reply.content.array_records["arrays"])["linear.weight"])
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])


def test_a_strategy_of_ours_inside_of_a_wrapper_says_how_to_put_it(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, STOCK, nodes=1)
    with pytest.raises(FedgeoError, match=r"^GGEUR must be started itself: .*GGEUR\(Wrapper\(base\)\)$"):
        list(GGEUR(FedAvg()).configure_train(1, initial(grid), ConfigRecord(), grid))


def test_a_run_whose_nodes_fail_at_once_ends_at_once(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "method=unheard_of", nodes=2)
    with pytest.raises(FedgeoError, match="^a node failed at its first message: .*method=unheard_of"):
        FedgeoStrategy(FedAvg()).start(grid, ArrayRecord())

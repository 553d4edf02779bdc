"""ProjAvg and RLAvg average somebody else's ClientApp: spd_learn's SPDNet, and arrays of any shape."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from spd_learn.models import SPDNet

from app.common.errors import FedgeoError
from app.geometry.stiefel import distance_to_stiefel, proj_avg, random_stiefel, rl_avg
from app.grids.in_process import InProcessGrid
from app.strategies import ProjAvg, RLAvg
from app.strategies.stiefel import StiefelFedAvg

NAME = "bimap.weight"  # (1, 8, 4)


def network() -> SPDNet:
    torch.manual_seed(0)
    return SPDNet(input_type="cov", n_chans=8, n_outputs=2, subspacedim=4)


def arrays_of(model: SPDNet) -> ArrayRecord:
    """What spd_learn's user sends: the matrix that torch's parametrisation stands for, and the classifier."""
    named = {NAME: model.bimap.weight, **{f"classifier.{n}": v for n, v in model.classifier.named_parameters()}}
    return ArrayRecord({name: Array(value.detach().numpy().copy()) for name, value in named.items()})


def load(model: SPDNet, arrays: ArrayRecord) -> None:
    model.bimap.weight = torch.from_numpy(arrays[NAME].numpy())
    with torch.no_grad():
        for name, value in model.classifier.named_parameters():
            value.copy_(torch.from_numpy(arrays[f"classifier.{name}"].numpy()))


def app_of_spd_learn() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        generator = torch.Generator().manual_seed(place)
        x = torch.randn(20 + 10 * place, 8, 16, generator=generator)
        y = torch.arange(len(x)) % 2
        model = network()
        load(model, message.content.array_records["arrays"])
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x @ x.mT / 16 + torch.eye(8)), y).backward()
            optimiser.step()
        content = RecordDict({"arrays": arrays_of(model), "metrics": MetricRecord({"num-examples": len(x)})})
        return Message(content, reply_to=message)

    return app


class Recording(InProcessGrid):
    """Remembers the replies of each round."""

    def send_and_receive(self, messages, *, timeout=None):  # type: ignore[no-untyped-def]
        replies = super().send_and_receive(messages, timeout=timeout)
        if replies:
            self.last = replies
        return replies


@pytest.mark.parametrize("kind", [ProjAvg, RLAvg])
def test_spd_learns_network_stays_on_the_manifold(kind: type[StiefelFedAvg]) -> None:
    grid = Recording(app_of_spd_learn(), {}, nodes=3)
    strategy = kind(stiefel=NAME, fraction_evaluate=0.0)
    before = strategy.start(grid, arrays_of(network()), num_rounds=2).arrays
    assert before is not None
    found = strategy.start(grid, before, num_rounds=1).arrays
    assert found is not None
    w = torch.from_numpy(found[NAME].numpy())
    assert w.shape == (1, 8, 4) and w.dtype == torch.float32
    assert distance_to_stiefel(w.double()) < 1e-6

    contents = [reply.content for reply in grid.last]
    shares = [float(content.metric_records["metrics"]["num-examples"]) for content in contents]  # type: ignore[arg-type]
    assert sorted(shares) == [20, 30, 40]
    own = [torch.from_numpy(content.array_records["arrays"][NAME].numpy())[0] for content in contents]
    assert max(float((v - own[0]).abs().max()) for v in own) > 1e-3  # the clients went apart
    previous = torch.from_numpy(before[NAME].numpy())[0]
    wanted = proj_avg(own, shares) if kind is ProjAvg else rl_avg(previous, own, shares)
    torch.testing.assert_close(w[0].double(), wanted, rtol=0, atol=1e-6)
    biases = [content.array_records["arrays"]["classifier.bias"].numpy() for content in contents]
    mean = np.average(biases, axis=0, weights=shares)
    np.testing.assert_allclose(found["classifier.bias"].numpy(), mean, rtol=0, atol=1e-7)


def around(w: torch.Tensor, seed: int) -> torch.Tensor:
    """A point of the manifold near ``w``."""
    generator = torch.Generator().manual_seed(seed)
    noise = 0.1 * torch.randn(w.shape, generator=generator, dtype=w.dtype)
    return torch.linalg.qr(w + noise).Q * torch.sign(torch.diagonal(torch.linalg.qr(w + noise).R))


def averaged(
    strategy: StiefelFedAvg, sent: dict[str, np.ndarray], replies: Sequence[dict[str, np.ndarray]]
) -> ArrayRecord:
    """What the strategy makes of these replies, the k-th of weight k + 1."""

    def app(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        record = ArrayRecord({name: Array(value) for name, value in replies[place].items()})
        content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": place + 1})})
        return Message(content, reply_to=message)

    grid = InProcessGrid(app, {}, nodes=len(replies))
    record = ArrayRecord({name: Array(value) for name, value in sent.items()})
    requests = strategy.configure_train(1, record, ConfigRecord(), grid)
    mean, _ = strategy.aggregate_train(1, grid.send_and_receive(requests))
    assert mean is not None
    return mean


@pytest.mark.parametrize("kind", [ProjAvg, RLAvg])
def test_wide_matrices_and_batches_are_averaged_matrix_by_matrix(kind: type[StiefelFedAvg]) -> None:
    starts = [random_stiefel(6, 3, torch.Generator().manual_seed(k)) for k in range(2)]
    own = [[around(w, 10 * k + i) for i, w in enumerate(starts)] for k in range(3)]

    def named(pair: list[torch.Tensor]) -> dict[str, np.ndarray]:
        batch = torch.stack(pair)
        wide = batch.mT.reshape(2, 1, 3, 6).contiguous()
        return {"a.batch": batch.numpy(), "b.wide": wide.numpy(), "c": batch[0].numpy()}

    found = averaged(kind(stiefel=["a.*", "b.wide"]), named(starts), [named(pair) for pair in own])
    for i, before in enumerate(starts):
        matrices = [pair[i] for pair in own]
        wanted = proj_avg(matrices, [1, 2, 3]) if kind is ProjAvg else rl_avg(before, matrices, [1, 2, 3])
        torch.testing.assert_close(torch.from_numpy(found["a.batch"].numpy())[i], wanted, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.from_numpy(found["b.wide"].numpy())[i, 0].mT, wanted, rtol=0, atol=1e-12)
    plain = sum(n * pair[0] for n, pair in enumerate(own, start=1)) / 6
    torch.testing.assert_close(torch.from_numpy(found["c"].numpy()), plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("stiefel", "fault"),
    [
        ("bimap.*x", r"^stiefel='bimap\.\*x' matches none of the model's arrays: .*bimap\.weight"),
        (["bimap.weight", "unknown"], "^stiefel='unknown' matches none"),
        ("stiefel.*", "matches none"),
        ("classifier.bias", r"^stiefel: classifier\.bias must be a matrix, not of shape \(2,\)"),
    ],
)
def test_names_that_name_no_matrix_are_refused(stiefel: str | list[str], fault: str) -> None:
    grid = InProcessGrid(app_of_spd_learn(), {}, nodes=2)
    with pytest.raises(FedgeoError, match=fault):
        ProjAvg(stiefel=stiefel).start(grid, arrays_of(network()), num_rounds=1)


def test_the_parameters_behind_a_matrix_are_refused() -> None:
    state = {name: Array(value.numpy()) for name, value in network().state_dict().items()}
    with pytest.raises(FedgeoError, match=r"is a parameter behind a matrix: .* send the matrix itself, bimap\.weight$"):
        ProjAvg(stiefel="bimap.*").matrices(ArrayRecord(state))


def test_clients_that_cancel_out_are_told_by_the_arrays_name() -> None:
    w = random_stiefel(5, 2, torch.Generator().manual_seed(0)).numpy()
    with pytest.raises(FedgeoError, match="^stiefel.0: the clients' matrices cancel out"):
        averaged(ProjAvg(), {"stiefel.0": w}, [{"stiefel.0": w}, {"stiefel.0": w}, {"stiefel.0": -w}])

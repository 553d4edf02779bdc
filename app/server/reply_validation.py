"""What the server takes from its clients: every reply is checked against its request before it is used."""

import math
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Message, RecordDict

from .. import messages
from ..algorithms.base import Algorithm
from ..algorithms.signature import Signature, check_tensors, signature, template
from ..augmentation import registry as augmentation
from ..augmentation.base import Sender
from ..common.errors import FedgeoError
from ..common.received import LARGEST, MOST, array, only
from ..config.privacy import RESEARCH
from ..config.schema import Config
from ..geometry.class_statistics import ClassStatistics
from ..geometry.statistics_checks import check_statistics
from ..grids.cohort import CohortGrid, named
from ..messages import ARRAYS, CONFIG, METRICS, Part
from ..messages.schema import Described, HandshakeReply, JoiningReply, real, said, whole, words
from ..models.base import Model
from ..one_shot.fitted import Fitted
from ..strategies.masked import part_length

FACTS = {  # what every client of a family must say
    "images": ("dimension", "normalisation"),
    "eeg": (
        *("channels", "sampling rate", "samples a trial", "unit", "filter", "window", "average reference"),
        *("covariance estimator", "recentring"),
    ),
}
SCALE = 1e-6  # what sums over float64 numbers may be off by, relative to them


class ReplyValidator:
    """The checks of one run, which know of the clients what they have reported so far."""

    def __init__(self, config: Config, grid: CohortGrid) -> None:
        self.config = config
        self.augmentation = augmentation.load(config.augmentation)
        self.grid = grid
        self.handshakes: dict[int, HandshakeReply] = {}
        self.totals: dict[int, int] = {}  # samples of each client's augmented set, where it reported them
        self.tested: dict[tuple[int, str, int], bytes] = {}  # samples of each class that a client is tested on
        self.domains = 0
        self._exchange: Signature | None = None
        self._model: tuple[Algorithm, Model] | None = None
        self._checks: dict[str, Callable[[int, str, Message, RecordDict], None]] = {
            messages.HELLO: self._handshake,
            messages.STATISTICS: self._statistics,
            messages.GEOMETRY: self._described,
            messages.TRAIN: self._trained,
            messages.EVALUATE: self._evaluated,
            messages.SUMS: self._answered,
            messages.JOINING: self._joining,
            messages.FINAL: self._final,
        }

    def expect(self, algorithm: Algorithm, model: Model, domains: int) -> None:
        """What clients train. domains: how many there are to be tested on."""
        self._model = (algorithm, model)
        self._exchange = None if isinstance(algorithm, Fitted) else signature(algorithm, model)
        self.domains = domains

    def check(self, request: Message, reply: RecordDict) -> None:
        """Raises FedgeoError, which names the client, for a reply that is no answer to ``request``."""
        client = request.metadata.dst_node_id
        who = named(client, self.grid.names)
        try:
            self._checks[request.metadata.message_type](client, who, request, reply)
        except FedgeoError:
            raise
        except Exception as error:  # a fault that no check foresaw is one of the reply all the same
            raise FedgeoError(f"{who}: its reply cannot be read ({type(error).__name__}: {error})") from None

    # --- one a message type ---

    def _handshake(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        part = messages.part(reply, who, (CONFIG,))
        only(part.config, ("json",), who, "field")
        handshake: HandshakeReply = said(HandshakeReply, words(part.config["json"], who), who)
        needed = FACTS[self.config.data.family]
        only(handshake.facts.keys() & set(needed), needed, who, "fact")  # others are compared between clients
        self.handshakes[client] = handshake

    def _statistics(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        if self.config.privacy.masked:
            self._masked(client, who, request, reply)
            return
        arrays = messages.part(reply, who, (ARRAYS,)).arrays
        requested, counts = messages.read_statistics(request.content), self._counts(client, who)
        largest = 1.0 if self.config.encoder.normalise == "l2" else LARGEST
        sender = Sender(who, counts, self._exact(client), self._dimension(client, who), largest)
        if requested == "augmentation":
            found = self.augmentation.read_statistics(arrays, len(counts), who)
            only(arrays, found.to_arrays(), who, "array")
            self.augmentation.check_statistics(found, sender)
            return
        statistics = ClassStatistics.from_arrays(arrays, who)
        only(arrays, statistics.to_arrays(), who, "array")
        check_statistics(statistics, counts, sender.dimension, sender.exact, who, largest)
        if requested == "means" and bool(statistics.ranks.any()):
            raise FedgeoError(f"{who}: it sends covariances, means alone were requested")

    def _masked(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        """Of a masked part nothing but its length can be checked."""
        weights = 0 if self._exchange is None else sum(math.prod(shape) for shape, _ in self._exchange.weights.values())
        dimension = self._dimension(client, who) if request.metadata.message_type == messages.STATISTICS else 0
        length = part_length(request, len(self._counts(client, who)), dimension, weights)
        messages.check_masked(reply, length, who)

    def _described(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        part = messages.part(reply, who, (CONFIG, METRICS))
        only(part.metrics, ("added", "perturbed", "perturbation_rms"), who, "figure")
        only(part.config, ("json",), who, "field")
        added = whole(part.metrics["added"], who, "added")
        whole(part.metrics["perturbed"], who, "perturbed", most=added)
        real(part.metrics["perturbation_rms"], who, "perturbation_rms", 0.0)
        counts: Described = said(Described, words(part.config["json"], who), who)
        reported = self._counts(client, who)
        if len(counts.total) != len(reported) or len(counts.unshaped) != len(reported):
            raise FedgeoError(f"{who}: it reports {len(counts.total)} classes, there are {len(reported)}")
        if any(bare > whole_ for bare, whole_ in zip(counts.unshaped, counts.total, strict=True)):
            raise FedgeoError(f"{who}: more samples without a shape than there are")
        step = self._handshake_of(client, who).privacy.round_counts
        if any(n % step for n in (added, part.metrics["perturbed"], *counts.total, *counts.unshaped)):
            raise FedgeoError(f"{who}: its counts do not keep the policy that it reported")
        if self._exact(client):
            if any(n < own for n, own in zip(counts.total, reported.tolist(), strict=True)):
                raise FedgeoError(f"{who}: its augmented classes are smaller than those of its handshake")
            if sum(counts.total) - int(reported.sum()) != added:
                raise FedgeoError(f"{who}: {added} added samples do not go with its counts by class")
            self.totals[client] = sum(counts.total)

    def _trained(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        if self.config.privacy.masked:
            self._masked(client, who, request, reply)
            return
        assert self._exchange is not None
        part = messages.part(reply, who, (ARRAYS, METRICS))
        metrics = ("num-examples", "train_loss")
        only(part.metrics.keys() - {"clamped_fraction"}, metrics, who, "figure")
        weights, auxiliary = messages.split_arrays(part.arrays)
        check_tensors(weights, self._exchange.weights, who)
        check_tensors(auxiliary, self._exchange.up, who)
        self._examples(client, who, part)
        real(part.metrics["train_loss"], who, "train_loss")
        real(part.metrics.get("clamped_fraction", 0.0), who, "clamped_fraction", 0.0, 1.0)

    def _examples(self, client: int, who: str, part: Part) -> None:
        """What the reply weighs must be what its handshake says it holds; 1 where all weigh the same."""
        found = real(part.metrics["num-examples"], who, "num-examples", 1.0, MOST)
        wanted: float | None = None
        if self.config.federation.weights == "equal":
            wanted = 1.0
        elif self._exact(client):
            own = int(self._counts(client, who).sum())
            wanted = own if self.config.federation.weights == "real" else self.totals.get(client, own)
        if found % self._handshake_of(client, who).privacy.round_counts and wanted != 1.0:
            raise FedgeoError(f"{who}: num-examples is {found:g}, which does not keep the policy that it reported")
        if wanted is not None and found != wanted:
            raise FedgeoError(f"{who}: num-examples is {found:g}, by its handshake it is {wanted:g}")

    def _evaluated(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        part = messages.part(reply, who, (ARRAYS, METRICS))
        only(part.metrics, ("num-examples",), who, "figure")
        names = [f"{of}.{what}" for of in ("val", "test") for what in ("domain", "confusion", "loss")]
        only(part.arrays, names, who, "array")
        classes = len(self._counts(client, who))
        for of in ("val", "test"):
            domain = array(part.arrays, f"{of}.domain", "int64", (None,), who)
            confusion = array(part.arrays, f"{of}.confusion", "int64", (len(domain), classes, classes), who)
            losses = array(part.arrays, f"{of}.loss", "float64", (len(domain),), who)
            if len(set(domain.tolist())) != len(domain) or bool(((domain < 0) | (domain >= self.domains)).any()):
                raise FedgeoError(f"{who}: {of}.domain must name different domains of the {self.domains} there are")
            if bool((confusion < 0).any()) or bool((losses < 0).any()):
                raise FedgeoError(f"{who}: {of} counts and losses must not be negative")
            policy = self._handshake_of(client, who).privacy
            rows = confusion.sum(axis=2)
            if bool(((rows > 0) & ((rows < policy.min_count) | (rows % policy.round_counts > 0))).any()):
                raise FedgeoError(f"{who}: {of} counts do not keep the policy that it reported")
            for number, counts in zip(domain.tolist(), rows, strict=True):
                before = self.tested.setdefault((client, of, number), counts.tobytes())
                if before != counts.tobytes():
                    raise FedgeoError(f"{who}: it is tested on other samples than before")
        samples = whole(part.metrics["num-examples"], who, "num-examples")
        if samples != int(part.arrays["test.confusion"].sum()):
            raise FedgeoError(f"{who}: num-examples is {samples}, its confusion counts others")

    def _answered(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        assert self._model is not None
        algorithm, model = self._model
        assert isinstance(algorithm, Fitted)
        arrays = messages.part(reply, who, (ARRAYS,)).arrays
        reported = self._counts(client, who)
        question, request_weights = messages.read_question(request.content)
        honest = algorithm.answer(
            question, request_weights, model.blank_input(), torch.zeros(1, dtype=torch.int64), len(reported), {}
        )
        found = {name: torch.from_numpy(np.asarray(value)) for name, value in arrays.items()}
        check_tensors(found, template(honest), who)
        if "counts" in found and not np.array_equal(arrays["counts"], reported):
            raise FedgeoError(f"{who}: counts are not those of its handshake")
        if "count" in found and self._exact(client) and arrays["count"][0] != reported.sum():
            raise FedgeoError(f"{who}: count is not that of its handshake")
        for name in ("sum", "sums"):
            if name in found:
                check_symmetric(arrays[name], name, question == "mean", who)
        if "loss" in found and float(found["loss"]) < 0:
            raise FedgeoError(f"{who}: the loss must not be negative")

    def _joining(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        part = messages.part(reply, who, (CONFIG,))
        only(part.config, ("json",), who, "field")
        said(JoiningReply, words(part.config["json"], who), who)

    def _final(self, client: int, who: str, request: Message, reply: RecordDict) -> None:
        messages.part(reply, who, ())

    # --- what a client's handshake says ---

    def _handshake_of(self, client: int, who: str) -> HandshakeReply:
        if client not in self.handshakes:
            raise FedgeoError(f"{who}: there was no handshake with it")
        return self.handshakes[client]

    def _counts(self, client: int, who: str) -> np.ndarray:
        """The samples of each class that the client reported, in the order of the run's classes, (C,)."""
        own = self._handshake_of(client, who)
        agreed = self.grid.agreed.classes if self.grid.agreed is not None else None
        counts = dict(zip(own.classes, own.counts, strict=True))
        return np.array([counts.get(name, 0) for name in agreed or own.classes], dtype=np.int64)

    def _dimension(self, client: int, who: str) -> int:
        value = self._handshake_of(client, who).facts.get("dimension")
        return whole(value, who, "dimension", 1)

    def _exact(self, client: int) -> bool:
        """Whether what the client tells of counts is all of it, and not rounded."""
        policy = self.handshakes[client].privacy
        return (policy.min_count, policy.round_counts) == (RESEARCH.min_count, RESEARCH.round_counts)


def check_symmetric(matrices: np.ndarray, name: str, semidefinite: bool, who: str) -> None:
    """Refuse matrices (..., n, n) that are not symmetric or, where ``semidefinite``, not positive semidefinite."""
    scale = float(np.abs(matrices).max(initial=0.0))
    if scale > LARGEST or not bool((np.abs(matrices - np.swapaxes(matrices, -1, -2)) <= SCALE * scale).all()):
        raise FedgeoError(f"{who}: {name} is not symmetric")
    if semidefinite and float(np.linalg.eigvalsh(matrices).min(initial=0.0)) < -SCALE * scale:
        raise FedgeoError(f"{who}: {name} is not positive semidefinite")

"""What a node does for each client that it hosts: describe, gather statistics, augment, train.

Nothing here knows Flower. Everything that is expensive is kept for the next message of the same process, and is
rebuilt from the site's data and its state folder where the process is new.
"""

import functools
import getpass
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ..algorithms.base import Algorithm, Local
from ..algorithms.registry import local_algorithm
from ..algorithms.signature import Signature, check_tensors, signature, template
from ..augmentation.augmented_set import Augmentation, AugmentedSet
from ..augmentation.fedmix import MixedSet, Mixing, SharedMeans, batch_means
from ..augmentation.set_cache import SET_CACHE
from ..common.code import code_hash
from ..common.device import choose_device
from ..common.errors import FedgeoError, describe
from ..common.seeds import INITIAL, MIXING, SHUFFLE, generator
from ..config.privacy import check_mixing, check_prototypes, rounded, rounded_counts, rounded_sums, smallest_reported
from ..config.schema import Config
from ..data.experiment import build_model
from ..data.federated_dataset import FederatedDataset, Samples, federated_dataset
from ..data.policy_view import policy_view
from ..geometry.class_statistics import ClassStatistics, gather
from ..geometry.gaussians import Gaussians, estimate
from ..grids.placement import hosted, together
from ..models.base import Model, Weights
from ..models.eegnet import EEGNet
from ..models.spdnet import SPDNet
from ..models.weights import prefixed, unprefixed
from ..one_shot.fitted import Fitted
from ..training.evaluation import evaluate
from ..training.plain import LocalResult, LocalSettings, predict, train
from ..training.samples import TensorSet
from .client_states import ClientStates
from .geometry_store import SERVER, GeometryStore

METHOD, MODEL, MOMENTS, OWN = "method/", "model/", "moments/", "own/"  # whose a client's kept tensors are

Gathered = TypeVar("Gathered", ClassStatistics, Gaussians)
TrainingSet = AugmentedSet | MixedSet | TensorSet


class Node:
    """The clients of one node, numbers in ``whole_dataset``; ``state`` is the node's folder."""

    def __init__(self, config: Config, whole_dataset: FederatedDataset, clients: list[int], state: Path) -> None:
        self.config = config
        self.whole_dataset = whole_dataset
        self.dataset = policy_view(whole_dataset, config.privacy, config.seed)  # all that anything is said of
        self.clients = clients
        self.state = state
        self.states = ClientStates(state / "clients")
        self.algorithm = local_algorithm(config)
        self.together = together(config, len(whole_dataset))
        self.device = choose_device(config.device).type  # where linear heads are trained in cohorts
        self._sets: dict[tuple[int, str], TrainingSet] = {}
        self.geometry_store = GeometryStore(config, self.dataset, clients, state)
        self._memories: dict[int, dict[str, Any]] = {}  # of a fitted method's questions, by client

    def tell(self, error: Exception) -> str:
        """What the server is told of an error."""
        return describe(error)

    def hello(self, client: int) -> dict[str, Any]:
        """What must agree before anything is trained, and how many samples of each class are spoken of."""
        classes, privacy = self.dataset.classes, self.config.privacy
        return {
            "code": code_hash(),
            "classes": list(classes),
            "facts": self.dataset.facts(client),
            "domain": self.dataset.client_domain(client),
            "counts": rounded_counts(self.counts(client), privacy).tolist(),
            "privacy": privacy.model_dump(),
        }

    def counts(self, client: int) -> np.ndarray:
        """The client's training samples of each class, int64 (C,), as far as it speaks of them."""
        return np.bincount(self.dataset.train(client).y, minlength=len(self.dataset.classes))

    def statistics(self, client: int, what: str = "augmentation") -> dict[str, np.ndarray]:
        """What the client shares, packed: class statistics, with ``covariances`` or ``means`` alone.

        ``augmentation``: those that the augmentation needs, or a peer's in their place.
        """
        own, privacy = self.dataset.train(client), self.config.privacy
        chosen, minimum = self.config.augmentation, smallest_reported(privacy)

        def packed(found: Gathered) -> dict[str, np.ndarray]:
            counts = np.array([rounded(int(n), privacy) for n in found.counts], dtype=np.int64)
            return replace(found, counts=counts).to_arrays(chosen.precision)

        if what != "augmentation":
            return packed(gather(own.x, own.y, covariances=what == "covariances"))
        check_prototypes(chosen.step2, privacy)
        if chosen.kind == "fedmix":
            check_mixing(chosen.kind, privacy)
            rng = np.random.default_rng([self.config.seed, MIXING, client])
            return batch_means(own.x, own.y, len(self.dataset.classes), chosen.mean_of, rng, minimum).to_arrays()
        if chosen.kind == "fedfa":
            return packed(estimate(own.x, own.y))
        shaped = chosen.kind != "shift" or chosen.noise
        return packed(gather(own.x, own.y, covariances=shaped))

    @functools.cached_property
    def signature(self) -> Signature:
        """What is sent and received in a round."""
        if isinstance(self.algorithm, Fitted):
            return Signature(template(self.model().export()), {}, ({},))
        return signature(self.algorithm, self.model(), self.dataset.inputs)

    def check_weights(self, weights: Weights, auxiliary: Weights, *, training: bool = False) -> None:
        """Refuse what a server sends unless it fits this model and, beside the weights for training, this method."""
        check_tensors(weights, self.signature.weights, SERVER)
        if not training:
            check_tensors(auxiliary, {}, SERVER)
            return
        down = [wanted for wanted in self.signature.down if wanted.keys() == auxiliary.keys()]
        check_tensors(auxiliary, down[0] if down else self.signature.down[0], SERVER)

    def describe_augmentation(self, client: int, digest: str) -> tuple[dict[str, float | int], dict[str, Any]]:
        """How many samples were added, and the root of their mean squared perturbation; and the counts by class."""
        data = self.data(client, digest)
        if isinstance(data, MixedSet):
            data = data.own
        assert isinstance(data, AugmentedSet)
        data.measure()
        privacy = self.config.privacy
        figures = {
            "added": rounded(data.added, privacy),
            "perturbed": rounded(data.perturbed, privacy),
            "perturbation_rms": data.perturbation_rms,
        }
        unshaped = np.array([data.unshaped.get(label, 0) for label in range(len(self.dataset.classes))])
        total, bare = ([rounded(int(n), privacy) for n in row] for row in (data.counts, unshaped))
        return figures, {"total": total, "unshaped": bare}

    def train(
        self,
        client: int,
        number: int,
        digest: str,
        rate: float,
        weights: Weights,
        shared: Weights,
        steps: int | None = None,
    ) -> LocalResult:
        """One participation in round ``number`` with learning rate ``rate``, from the global ``weights``.

        steps: gradient steps to take, in place of the configured epochs.
        """
        data, local, kept = self.enter(client, number, digest, weights, shared)
        model = self.model()
        model.load_local_state(unprefixed(kept, MODEL))
        seeded, moments = self.order(client, number), unprefixed(kept, MOMENTS)
        result = train(model, data, self.objective(data), local, self.settings(rate, steps), seeded, moments)
        self.leave(client, number, result, model.local_state())
        return result

    def enter(
        self, client: int, number: int, digest: str, weights: Weights, shared: Weights
    ) -> tuple[TrainingSet, Local, Weights]:
        """What the client begins round ``number`` with: its samples, weights and state; and all that it kept."""
        kept = self.states.load(client, before=number)
        if not self.algorithm.shares:
            weights = unprefixed(kept, OWN) or self.initial()
        return self.data(client, digest), Local(weights, shared, unprefixed(kept, METHOD)), kept

    def order(self, client: int, number: int) -> torch.Generator:
        """What shuffles the client's samples in round ``number``."""
        return generator(self.config.seed, SHUFFLE, client, number)

    def settings(self, rate: float, steps: int | None = None) -> LocalSettings:
        """The local loop's, with this learning rate."""
        chosen = self.config.training
        return LocalSettings(
            epochs=1 if self.algorithm.centralised else chosen.epochs,
            batch_size=chosen.batch_size,
            optimiser=chosen.optimiser,
            lr=rate,
            momentum=chosen.momentum,
            weight_decay=chosen.weight_decay,
            steps=steps,
        )

    def leave(self, client: int, number: int, result: LocalResult, local_state: Weights) -> None:
        """Keep what the client needs in its next round. local_state: what its model keeps to itself."""
        keep = prefixed(result.state, METHOD) | prefixed(local_state, MODEL)
        if self.config.training.keep_moments or self.algorithm.centralised:
            keep |= prefixed(result.moments, MOMENTS)
        if not self.algorithm.shares:
            keep |= prefixed(result.weights, OWN)
        self.states.save(client, number, keep)

    def evaluate(self, client: int, number: int, weights: Weights) -> dict[str, dict[int, tuple[np.ndarray, float]]]:
        """After round ``number``: confusion (C, C) and summed loss of the client's own 'val' and 'test' samples.

        By domain, that is by subject for EEG. Where samples are held out for all clients together, those. Of samples
        that nothing is said of there is no figure.
        """
        return self.scored(client, number, weights, self.dataset)

    def scored(
        self, client: int, number: int, weights: Weights, whole_dataset: FederatedDataset
    ) -> dict[str, dict[int, tuple[np.ndarray, float]]]:
        """``evaluate`` on what ``whole_dataset`` holds out."""
        counted: dict[str, dict[int, tuple[np.ndarray, float]]] = {"val": {}, "test": {}}
        held = {part: whole_dataset.held_out(part, None if whole_dataset.central else client) for part in counted}
        if not any(map(len, held.values())):
            return counted
        model = self.model()
        found = self.states.load(client, before=number + 1)
        if not self.algorithm.shares:
            weights = unprefixed(found, OWN) or self.initial()
        model.load(weights)
        kept = unprefixed(found, MODEL)
        if isinstance(model, EEGNet) and not kept:  # it has not trained yet: its own statistics, without labels
            model.calibrate(torch.from_numpy(self.dataset.train(client).x))
        else:
            model.load_local_state(kept)
        for part, by_domain in counted.items():
            own = held[part]
            for domain in np.unique(own.domain):
                rows = own.domain == domain
                outputs = predict(model, own.x[rows])
                scores = evaluate(outputs, own.y[rows], own.domain[rows], self.dataset.domains, self.dataset.classes)
                by_domain[int(domain)] = (scores.confusion, scores.loss * scores.samples)
        return counted

    def answer(self, client: int, question: str, asked: Weights) -> Weights:
        """What the client says to a question of a fitted method."""
        assert isinstance(self.algorithm, Fitted)
        data = self.data(client, "")
        assert isinstance(data, TensorSet)
        self.algorithm.check_question(question, asked, self.dataset.inputs["channels"], len(self.dataset.classes))
        memory = self._memories.setdefault(client, {})
        sums = self.algorithm.answer(question, asked, data.x, data.y, len(self.dataset.classes), memory)
        return rounded_sums(sums, len(data), self.config.privacy)

    def auxiliary(self, auxiliary: Weights) -> Weights:
        """What the method sends up beside the weights, with counts as they are told."""
        return self.algorithm.rounded(auxiliary, self.config.privacy.round_counts)

    def watch(self, client: int, number: int, weights: Weights) -> dict[str, float]:
        """In the first round: the share of SPDnet's eigenvalues that ReEig clamps, a check of unit and epsilon.

        In hundredths, for the exact share would tell how many trials there are.
        """
        if number > 1 or not isinstance(model := self.model(), SPDNet):
            return {}
        model.load(weights)
        return {"clamped_fraction": round(model.clamped_fraction(torch.from_numpy(self.dataset.train(client).x)), 2)}

    def examples(self, client: int, digest: str) -> float:
        """What the client's reply weighs in the average: ``federation.weights``."""
        if self.config.federation.weights == "equal":
            return 1.0
        real = self.config.federation.weights == "real"
        return float(
            rounded(len(self.dataset.train(client) if real else self.data(client, digest)), self.config.privacy)
        )

    def initial(self) -> Weights:
        """The weights that every client of the run starts from."""
        model = self.model()
        model.reset(generator(self.config.seed, INITIAL))
        return model.export()

    def model(self) -> Model:
        """A fresh model."""
        return build_model(self.config, self.algorithm, self.dataset)

    def data(self, client: int, digest: str) -> TrainingSet:
        """The client's training set, kept while there is room. ``digest`` names the geometry, '' for none."""
        key = (client, digest)
        if key not in self._sets:
            own = self.dataset.train(client)
            if not len(own):
                bound = smallest_reported(self.config.privacy)
                found = f"of a class privacy.min_count={bound}" if bound > 1 else "any"
                raise FedgeoError(
                    f"client {client} does not have {found} training samples: lower federation.clients or add data"
                )
            eeg = self.config.data.family == "eeg"
            if eeg and digest:
                raise FedgeoError(f"client {client}: EEG trials are not augmented, but shapes {digest[:12]} are named")
            self._sets[key] = TensorSet(own.x, own.y) if eeg else self._augmented(client, own, digest)
        data = self._sets[key]
        if not isinstance(data, TensorSet):
            SET_CACHE.use(data.own if isinstance(data, MixedSet) else data)
        return data

    def _augmented(self, client: int, own: Samples, digest: str) -> AugmentedSet | MixedSet:
        """The client's samples with what its augmentation adds to them or mixes them with."""
        chosen = self.config.augmentation
        shared = self.geometry_store.load(digest)[0] if digest else None
        mixing = shared if isinstance(shared, SharedMeans) else None
        if chosen.kind == "fedmix" and mixing is None:
            raise FedgeoError(f"client {client}: augmentation=fedmix needs the means that clients share")
        filled = AugmentedSet(
            own.x,
            own.y,
            settings=Augmentation(
                kind=chosen.kind if mixing is None else "none",
                target=chosen.target,
                absent=chosen.absent,
                scale=chosen.scale if chosen.kind in ("ggeur", "shift") else "sqrt",
                step2=chosen.step2,
                per_prototype=chosen.per_prototype,
                noise=chosen.noise,
            ),
            geometry=None if isinstance(shared, SharedMeans) else shared,
            classes=len(self.dataset.classes),
            seed=self.config.seed,
            client=client,
            own=self._own(client, digest) if chosen.step2 and digest else None,
        )
        return filled if mixing is None else MixedSet(filled, mixing)

    def objective(self, data: TrainingSet) -> Algorithm:
        """The method's algorithm; on mixed samples with FedMix's loss."""
        if not isinstance(data, MixedSet):
            return self.algorithm
        return Mixing(self.algorithm, self.config.augmentation.mix, len(self.dataset.classes))

    def _own(self, client: int, digest: str) -> set[int]:
        """The clients of this one's domain, itself among them: their prototypes are not foreign to it."""
        domains = self.geometry_store.load(digest)[1]
        if client >= len(domains):
            raise FedgeoError(f"client {client} is not among the {len(domains)} clients that the geometry is for")
        same = np.flatnonzero((domains == domains[client]) & (domains >= 0))
        return {client, *same.tolist()}


def state_folder(config: Config, run_id: int) -> Path:
    """Where simulated nodes keep geometry and their clients' state: in the run directory where that is known."""
    if where := config.resume or config.run_dir:
        return Path(where) / "state"
    return Path(tempfile.gettempdir()) / f"fedgeo-{getpass.getuser()}-{run_id}"


@functools.lru_cache(maxsize=4)
def node(config: Config, place: tuple[int, int], state: Path) -> Node:
    """The node at ``place``, kept for the next message of the same process.

    place: (partition-id, num-partitions). state: its folder.
    """
    whole_dataset = federated_dataset(config)
    return Node(config, whole_dataset, hosted(len(whole_dataset), *place, together(config, len(whole_dataset))), state)

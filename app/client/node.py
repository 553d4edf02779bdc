"""What a node does for each client that it hosts: describe, gather statistics, augment, train.

Nothing here knows Flower. Everything that is expensive is kept for the next message of the same process, and is
rebuilt from the site's data and its state folder where the process is new.
"""

import functools
import getpass
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..algorithms.base import Algorithm, Local
from ..algorithms.registry import local_algorithm
from ..algorithms.signature import Signature, check_tensors, signature, template
from ..augmentation import registry as augmentation
from ..augmentation.base import Client, packed
from ..common.code import code_hash
from ..common.device import choose_device
from ..common.errors import describe
from ..common.seeds import SHUFFLE, generator
from ..config.privacy import RESEARCH, rounded, rounded_counts, rounded_sums
from ..config.schema import Config, Privacy
from ..data.experiment import Experiment
from ..data.federated_dataset import FederatedDataset, federated_dataset
from ..data.policy_view import policy_view
from ..geometry.class_statistics import ClassStatistics, gather
from ..geometry.class_sums import to_sums
from ..grids.placement import hosted, together
from ..masking.roster import Roster
from ..models.base import Model, Weights
from ..models.weights import prefixed, unprefixed
from ..one_shot.fitted import Fitted
from ..training.plain import LocalResult, LocalSettings, train
from ..training.samples import TensorSet
from .client_states import ClientStates
from .geometry_store import SERVER, GeometryStore
from .joining import Joining, Trial, told
from .masks import MASKS, Masks
from .scoring import PARTS, Counted, count, held_out
from .training_sets import ClientSet, TrainingSets

if TYPE_CHECKING:
    from .local_training import Call

METHOD, MODEL, MOMENTS, OWN = "method/", "model/", "moments/", "own/"  # whose a client's kept tensors are


class Node:
    """The clients of one node, numbers in ``whole_dataset``; ``state`` is the node's folder.

    site_seed: a site's own, of what it draws of its samples for others; None: the run's draws that.
    """

    def __init__(
        self,
        config: Config,
        whole_dataset: FederatedDataset,
        clients: list[int],
        state: Path,
        site_seed: int | None = None,
    ) -> None:
        self.config = config
        self.site_seed = site_seed
        self.whole_dataset = whole_dataset
        # all that anything is said of
        self.dataset = policy_view(whole_dataset, config.privacy, self.seed, by_name=site_seed is not None)
        self.clients = clients
        self.state = state
        self.states = ClientStates(state / "clients")
        self.experiment = Experiment(config, local_algorithm(config), self.dataset)
        self.algorithm = self.experiment.algorithm
        self.together = together(config, len(whole_dataset))
        self.device = choose_device(config.device).type  # where linear heads are trained in cohorts
        self.augmentation = augmentation.load(config.augmentation)
        self.geometry_store = GeometryStore(config.privacy, self.augmentation, self.dataset, clients, state)
        self.sets = TrainingSets(config, self.dataset, self.augmentation, self.geometry_store)
        self.masks = Masks(state / MASKS)
        self._memories: dict[int, dict[str, Any]] = {}  # of a fitted method's questions, by client

    @property
    def seed(self) -> int:
        """Of what is drawn of the samples that are told of."""
        return self.config.seed if self.site_seed is None else self.site_seed

    def tell(self, error: Exception) -> str:
        """What the server is told of an error."""
        return describe(error)

    def prepare(self, client: int) -> None:
        """Read, process and encode the client's training samples, so that later messages find them done.

        This takes long where images meet an encoder for the first time; a new process finds embeddings in the cache.
        """
        self.dataset.train(client)

    def hello(self, client: int) -> dict[str, Any]:
        """What must agree before anything is trained, and how many samples of each class are spoken of."""
        classes, privacy = self.dataset.classes, self.config.privacy
        return {
            "code": code_hash(),
            "classes": list(classes),
            "facts": self.dataset.facts(client),
            "domain": self.dataset.client_domain(client),
            "counts": rounded_counts(self.counts(client), privacy).tolist(),
            "privacy": privacy.model_copy(update={"peers": None}).model_dump(),
            **({"mask_key": self.masks.public(client)} if privacy.masked else {}),
        }

    def counts(self, client: int) -> np.ndarray:
        """The client's training samples of each class, int64 (C,), as far as it speaks of them."""
        return np.bincount(self.dataset.train(client).y, minlength=len(self.dataset.classes))

    def statistics(self, client: int, what: str = "augmentation") -> dict[str, np.ndarray]:
        """What the client shares, packed: class statistics, with ``covariances`` or ``means`` alone.

        ``augmentation``: those that the augmentation needs.
        """
        own, config = self.dataset.train(client), self.config
        if what != "augmentation":
            found = gather(own.x, own.y, covariances=what == "covariances")
            return packed(found, config.privacy, config.augmentation.precision)
        self.augmentation.check(config.privacy)
        number = client if self.site_seed is None else 0  # a site's own draw is the same in every run
        itself = Client(number, len(self.dataset.classes), self.seed, config.privacy)
        return self.augmentation.client_statistics(own.x, own.y, itself)

    def class_sums(self, client: int, what: str, roster: Roster) -> np.ndarray:
        """What is masked of the client's class statistics, float64: of each class alone for an ``augmentation``.

        Counts are those that are told, and the sums are as if of so many samples, as everywhere.
        """
        own = self.dataset.train(client)
        told = ClassStatistics.from_arrays(packed(gather(own.x, own.y), self.config.privacy, "float64"))
        return to_sums(told, len(self.dataset.classes), roster.classes, by_class=what == "augmentation")

    @functools.cached_property
    def signature(self) -> Signature:
        """What is sent and received in a round."""
        if isinstance(self.algorithm, Fitted):
            return Signature(template(self.model().export()), {}, ({},))
        return signature(self.algorithm, self.model())

    def check_weights(self, weights: Weights, auxiliary: Weights, *, training: bool = False) -> None:
        """Refuse what a server sends unless it fits this model and, beside the weights for training, this method."""
        check_tensors(weights, self.signature.weights, SERVER)
        if not training:
            check_tensors(auxiliary, {}, SERVER)
            return
        down = [wanted for wanted in self.signature.down if wanted.keys() == auxiliary.keys()]
        check_tensors(auxiliary, down[0] if down else self.signature.down[0], SERVER)

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
        result = train(model, data, self.objective, local, self.settings(rate, steps), seeded, moments)
        self.leave(client, number, result, model.local_state())
        return result

    def enter(
        self, client: int, number: int, digest: str, weights: Weights, shared: Weights
    ) -> tuple[ClientSet, Local, Weights]:
        """What the client begins round ``number`` with: its samples, weights and state; and all that it kept."""
        kept = self.states.load(client, before=number)
        if not self.algorithm.shares:
            weights = unprefixed(kept, OWN) or self.initial()
        return self.sets.get(client, digest), Local(weights, shared, unprefixed(kept, METHOD)), kept

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

    def describe(self, client: int, digest: str) -> tuple[dict[str, float | int], dict[str, list[int]]]:
        """What the client has drawn beside its own samples, from what all clients were sent."""
        return self.sets.describe(client, digest)

    def sent(self, client: int, call: "Call", weights: Weights) -> Weights:
        """What the client sends of the weights that it has trained."""
        return weights

    def evaluate(self, client: int, number: int, weights: Weights) -> Counted:
        """After round ``number``: confusion (C, C) and summed loss of the client's own 'val' and 'test' samples.

        By domain, that is by subject for EEG. Where samples are held out for all clients together, those. Of samples
        that nothing is said of there is no figure.
        """
        return self.scored(client, number, weights, self.dataset, self.config.privacy)

    def scored(
        self, client: int, number: int, weights: Weights, whole_dataset: FederatedDataset, privacy: Privacy
    ) -> Counted:
        """``evaluate`` on what ``whole_dataset`` holds out, as ``privacy`` has it told."""
        held = held_out(whole_dataset, client, self.algorithm.shares)
        if not any(map(len, held.values())):
            return {part: {} for part in PARTS}
        model = self.model()
        found = self.states.load(client, before=number + 1)
        if not self.algorithm.shares:
            weights = unprefixed(found, OWN) or self.initial()
        model.load(weights)
        kept = unprefixed(found, MODEL)
        if not kept:  # it has not trained yet: its own statistics, without labels
            model.calibrate(torch.from_numpy(self.dataset.train(client).x))
        else:
            model.load_local_state(kept)
        counted: Counted = {part: {} for part in PARTS}
        for part, own in held.items():  # those that the server holds are nobody's
            bound = RESEARCH if part in whole_dataset.central else privacy
            counted |= count(model, {part: own}, self.dataset, bound)
        return counted

    def joining(self, client: int, weights: Weights, trained: np.ndarray) -> dict[str, Any]:
        """What the client tells of joining; see joining.py. trained: the counts of all training sets."""
        return told(self.joined(client, weights, trained), self.config.privacy.round_counts)

    def joined(self, client: int, weights: Weights, trained: np.ndarray) -> Joining:
        """What came of joining at the client."""
        return Trial(self, client, weights, trained).run()

    def answer(self, client: int, question: str, asked: Weights) -> Weights:
        """What the client says to a question of a fitted method."""
        assert isinstance(self.algorithm, Fitted)
        data = self.sets.get(client, "")
        assert isinstance(data, TensorSet)
        self.algorithm.check_question(question, asked, self.dataset.inputs["channels"], len(self.dataset.classes))
        memory = self._memories.setdefault(client, {})
        sums = self.algorithm.answer(question, asked, data.x, data.y, len(self.dataset.classes), memory)
        return rounded_sums(sums, len(data), self.config.privacy)

    def auxiliary(self, auxiliary: Weights) -> Weights:
        """What the method sends up beside the weights, with counts as they are told."""
        return self.algorithm.rounded(auxiliary, self.config.privacy.round_counts)

    def watch(self, client: int, number: int, weights: Weights) -> dict[str, float]:
        """In the first round: the share of eigenvalues that the model clamps, a check of unit and epsilon.

        In hundredths, for the exact share would tell how many trials there are.
        """
        if number > 1:
            return {}
        model = self.model()
        model.load(weights)
        share = model.clamped_fraction(torch.from_numpy(self.dataset.train(client).x))
        return {} if share is None else {"clamped_fraction": round(share, 2)}

    def examples(self, client: int, digest: str) -> float:
        """What the client's reply weighs in the average: ``federation.weights``."""
        if self.config.federation.weights == "equal":
            return 1.0
        real = self.config.federation.weights == "real"
        return float(
            rounded(len(self.dataset.train(client) if real else self.sets.get(client, digest)), self.config.privacy)
        )

    def initial(self) -> Weights:
        """The weights that every client of the run starts from."""
        return self.experiment.initial()

    def model(self) -> Model:
        """A fresh model."""
        return self.experiment.model()

    @functools.cached_property
    def objective(self) -> Algorithm:
        """What clients train: the method's algorithm, or what the augmentation makes of it."""
        return self.augmentation.objective(self.algorithm, len(self.dataset.classes))


def state_folder(config: Config, run_id: int) -> Path:
    """Where simulated nodes keep geometry and their clients' state: in the run directory where that is known."""
    if where := config.resume or config.run_dir:
        return Path(where) / "state"
    return Path(tempfile.gettempdir()) / f"fedgeo-{getpass.getuser()}-{run_id}"


@functools.lru_cache(maxsize=4)
def node(config: Config, place: tuple[int, int], state: Path, spread: bool = False, kind: type[Node] = Node) -> Node:
    """The node at ``place``, kept for the next message of the same process.

    place: (partition-id, num-partitions). state: its folder. spread: whether clients that could be trained side by side
    are spread over all nodes too, to within one client; else they stay together, and a node may host none. kind: of
    node.
    """
    whole_dataset = federated_dataset(config)
    number = len(whole_dataset)
    return kind(config, whole_dataset, hosted(number, *place, 1 if spread else together(config, number)), state)

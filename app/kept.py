"""What this process keeps of augmented sets between rounds: the latest, within a budget of memory."""

import weakref
from collections import OrderedDict
from typing import Protocol

BUDGET = 640 * 2**20  # bytes: a chunk of clients (ten windows of app.augmentation), and no more


class Releasable(Protocol):
    """Something that can be computed again."""

    @property
    def nbytes(self) -> int: ...

    def release(self) -> None: ...


class Kept:
    """A budget that all nodes of a process share, for a worker may play several of them one after the other."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self._sets: OrderedDict[int, tuple[weakref.ref[Releasable], int]] = OrderedDict()

    def use(self, data: Releasable) -> None:
        """``data`` is about to be used: those used longest ago are released until all that is left fits."""
        key = id(data)
        self._sets[key] = weakref.ref(data, lambda _: self._sets.pop(key, None)), data.nbytes
        self._sets.move_to_end(key)
        while len(self._sets) > 1 and sum(size for _, size in self._sets.values()) > self.budget:
            _, (oldest, _) = self._sets.popitem(last=False)
            if (gone := oldest()) is not None:
                gone.release()


KEPT = Kept()

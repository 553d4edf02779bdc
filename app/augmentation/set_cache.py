"""What this process keeps of augmented sets between rounds: the latest, within a budget of memory."""

import weakref
from collections import OrderedDict
from typing import Protocol

BUDGET = 640 * 2**20  # bytes: a chunk of clients (ten windows of app.augmentation.augmented_set), and no more


class Releasable(Protocol):
    """Something that can be computed again."""

    @property
    def nbytes(self) -> int: ...

    def release(self) -> None: ...


class SetCache:
    """A budget that all nodes of a process share, for a worker may play several of them one after the other."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self._sets: OrderedDict[int, tuple[weakref.ref[Releasable], int]] = OrderedDict()
        self._total = 0  # bytes of all of them

    def use(self, data: Releasable) -> None:
        """``data`` is about to be used: those used longest ago are released until all that is left fits."""
        key = id(data)
        self._drop(key)
        self._sets[key] = weakref.ref(data, lambda _: self._drop(key)), data.nbytes
        self._total += data.nbytes
        while len(self._sets) > 1 and self._total > self.budget:
            oldest = self._drop(next(iter(self._sets)))
            if oldest is not None:
                oldest.release()

    def _drop(self, key: int) -> Releasable | None:
        """Forget what has this key; returns it where it is still there."""
        found, size = self._sets.pop(key, (None, 0))
        self._total -= size
        return None if found is None else found()


SET_CACHE = SetCache()

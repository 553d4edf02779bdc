"""Generators from keys, and the one-thread rule: what makes a run repeatable in any process."""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

WITH_BLAS = {"numpy", "scipy.linalg", "sklearn", "torch"}  # modules that bring a BLAS or OpenMP of their own
SHUFFLE, INITIAL, MIXING, VIRTUAL, HOSTILE = 11, 12, 13, 14, 15  # so that one seed gives each task a stream of its own


def generator(*key: int) -> torch.Generator:
    """A torch generator whose stream depends on the integers of ``key`` alone."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) % 2**63)


@contextmanager
def one_thread() -> Iterator[None]:
    """One compute thread in torch and BLAS: sums come out the same everywhere, and workers do not crowd."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _libraries(frozenset(WITH_BLAS & sys.modules.keys())).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _libraries(loaded: frozenset[str]) -> ThreadpoolController:
    """The process's BLAS libraries. To look for them takes milliseconds; they change when one of ``loaded`` comes."""
    return ThreadpoolController()

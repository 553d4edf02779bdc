"""Epochs of an augmented set: each sample once, in windows that bound the memory, the same from a seed."""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.augmented import P, augmented


def rows(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[bytes]:
    joined = torch.cat([torch.cat([x, y[:, None].float()], dim=1) for x, y in batches])
    return [row.tobytes() for row in joined.numpy()]


@settings(max_examples=25)
@given(size=st.integers(1, 700), window=st.integers(1, 40_000), seed=st.integers(0, 2**31))
def test_an_epoch_gives_each_sample_once_whatever_the_window(size: int, window: int, seed: int) -> None:
    data = augmented()
    expected = sorted(rows([data.materialise()]))
    batches = list(data.batches(size, torch.Generator().manual_seed(seed), window=window))
    assert sorted(rows(batches)) == expected
    lengths = [len(y) for _, y in batches]
    assert lengths == [size] * (len(data) // size) + [len(data) % size] * (len(data) % size > 0)
    again = list(augmented().batches(size, torch.Generator().manual_seed(seed), window=window))
    assert all(
        torch.equal(a, b) for one, two in zip(batches, again, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_a_set_that_fits_is_shuffled_as_a_whole_and_kept() -> None:
    data = augmented()
    generator = torch.Generator().manual_seed(3)
    first, second = (rows(list(data.batches(64, generator))) for _ in range(2))
    assert first != second and sorted(first) == sorted(second)
    kept = data.materialise()[0]
    assert kept.data_ptr() == data.materialise()[0].data_ptr()
    data.release()
    assert torch.equal(data.materialise()[0], kept) and data.materialise()[0].data_ptr() != kept.data_ptr()
    x, y = next(data.batches(len(data), torch.Generator().manual_seed(0)))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    assert torch.equal(x, kept[order]) and torch.equal(y, data.materialise()[1][order])


def test_in_order_passes_once_over_what_materialise_holds() -> None:
    data = augmented(step2=True)
    batches = list(data.in_order(100))
    assert max(len(y) for _, y in batches) == 100
    assert torch.equal(torch.cat([x for x, _ in batches]), data.materialise()[0])
    assert torch.equal(torch.cat([y for _, y in batches]), data.materialise()[1])
    assert data.nbytes == sum(tensor.nbytes for tensor in data.materialise())


def test_a_window_bounds_what_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    data = augmented(step2=True)
    width = 4 * P + 8
    collected: list[int] = []
    windows: list[weakref.ref[torch.Tensor]] = []
    collect = data._collect

    def record(blocks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        assert all(window() is None for window in windows)  # the last one was given up
        x, y = collect(blocks)
        windows.append(weakref.ref(x))
        collected.append(len(y))
        return x, y

    monkeypatch.setattr(data, "_collect", record)
    assert sum(len(y) for _, y in data.batches(32, torch.Generator(), window=600 * width)) == len(data)
    assert len(collected) > 3 and sum(collected) == len(data) and max(collected) <= 600
    collected.clear()
    list(data.batches(32, torch.Generator(), window=len(data) * width))
    assert collected == [len(data)]


def test_a_client_without_samples_still_has_an_epoch() -> None:
    empty = np.empty((0, P), np.float32), np.empty(0, dtype=int)
    assert len(augmented(*empty)) == 1200
    nothing = augmented(*empty, kind="none")
    assert len(nothing) == 0 and list(nothing.batches(8, torch.Generator())) == []

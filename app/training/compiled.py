"""The steps of one client's linear head, compiled: SGD on the cross-entropy, along g + offset + mu (w - w_t).

A batch of such a head is little work, B p C multiplications twice, so that what counts is all that happens beside
them. Here nothing does: samples are read where they lie, eight at a time, and a client's whole set stays in the
core's cache from step to step. It takes an eighth of the time of a loop over torch's operators.
"""

import hashlib
import pickle
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from ..common.files import write_atomic

TOGETHER = 8  # samples of a batch that share one pass over the weights, written out below
# Sums may be taken in any order, which is what lets them be vectorised; NaN and infinity stay what they are.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "arcp", "nsz"}}


class Parameter(NamedTuple):
    """A weight matrix (C, p) or bias (C,) and what belongs to it, of one shape, dtype and C order.

    value, velocity: are changed in place. start: w_t. gradient offset: see ``Algorithm``.
    """

    value: np.ndarray
    velocity: np.ndarray
    start: np.ndarray
    gradient_offset: np.ndarray


class Step(NamedTuple):
    """The numbers of a step: u = momentum u + g + offset + mu (w - w_t) + weight_decay w,  w = w - lr u."""

    lr: float
    momentum: float
    weight_decay: float
    proximal_weight: float


def descend(
    x: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    batch_size: int,
    steps: int,
    weight: Parameter,
    bias: Parameter,
    step: Step,
) -> tuple[int, float]:
    """Take steps along the batches of ``order``, at most ``steps``; returns how many, and the sum of their losses.

    x: (n, p) of the parameters' dtype, C order. labels: int64, the class of each of ``order``. order: int64, rows of
    x, cut into batches of ``batch_size``, the last one smaller. Raises ValueError where shapes differ, IndexError for
    a row outside x or a label outside the classes.
    """
    return _compiled(weight.value.dtype)(x, labels, order, batch_size, steps, weight, bias, step)


class CodeCache:
    """Compiled code among the user's caches: a file for what its source, signature and processor say, and its checksum.

    The copies of the source that Flower makes share it. What cannot be read or written, a damaged file, a missing
    home, another numba than those that this was written for, costs the time to compile and no more.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code, None where there is none that can be used. numba asks before it compiles."""
        with suppress(Exception):
            from numba.core.compiler import CompileResult

            target_context.refresh()
            content = self._path(sig, target_context.codegen()).read_bytes()
            code = content[hashlib.sha256().digest_size :]
            if content == _checked(code):
                return CompileResult._rebuild(target_context, *pickle.loads(code))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled."""
        with suppress(Exception):
            from numba.core.serialize import dumps

            write_atomic(self._path(sig, data.codegen), _checked(dumps(data._reduce())))

    def _path(self, sig: Any, codegen: Any) -> Path:
        known = (numba.__version__, sys.version, sig, codegen.magic_tuple(), Path(__file__).read_bytes(), __name__)
        config: Any = numba.config
        folder = Path(config.CACHE_DIR) if config.CACHE_DIR else Path.home() / ".cache" / "fedgeo" / "compiled"
        return folder / f"{hashlib.sha256(repr(known).encode()).hexdigest()[:24]}.code"


def _checked(code: bytes) -> bytes:
    """The code behind its checksum: numba runs what it is given, and a page of it that was lost ends the process."""
    return hashlib.sha256(code).digest() + code


@cache
def _compiled(dtype: np.dtype) -> Any:
    """``_descend`` for float32 or float64: compiled once a user, which takes seconds, and read from its file since."""
    real = numba.from_dtype(dtype)
    whole = types.Array(types.int64, 1, "C", readonly=True)
    samples = types.Array(real, 2, "C", readonly=True)
    parameters = [types.NamedUniTuple(types.Array(real, ndim, "C"), 4, Parameter) for ndim in (2, 1)]
    step = types.NamedUniTuple(types.float64, 4, Step)
    result = types.Tuple((types.int64, types.float64))
    made = numba.njit(**OPTIONS)(_descend)
    if made is not _descend:  # as it is with NUMBA_DISABLE_JIT
        made._cache = CodeCache()
        made.compile(result(samples, whole, whole, types.int64, types.int64, *parameters, step))
        made.disable_compile()
    return made


def _descend(x, labels, order, batch_size, steps, weight, bias, step):  # type: ignore[no-untyped-def]
    classes, p = weight.value.shape
    fits = x.shape[1] == p and len(bias.value) == classes and len(labels) == len(order) and batch_size >= 1
    for each in weight:
        fits = fits and each.shape == weight.value.shape
    for own in bias:
        fits = fits and own.shape == bias.value.shape
    if not fits:
        raise ValueError("samples, labels and weights do not fit each other")
    most = min(batch_size, len(order))
    rows = np.empty(most + TOGETHER, np.int64)
    slopes = np.empty((classes, most + TOGETHER), x.dtype)
    gradient, sums = np.empty_like(weight.value), np.empty_like(bias.value)
    done, losses = 0, 0.0
    for first in range(0, len(order), batch_size):
        if done == steps:
            break
        batch = min(batch_size, len(order) - first)
        filled = -(-batch // TOGETHER) * TOGETHER  # with rows whose slope is zero
        for i in range(filled):
            rows[i] = order[first + min(i, batch - 1)]
            if not 0 <= rows[i] < len(x):
                raise IndexError("a batch has a sample that is not there")
        _logits(x, rows[:filled], weight.value, bias.value, slopes)
        losses += _slopes(labels[first : first + batch], slopes, filled)
        _gradients(x, rows[:filled], slopes, gradient, sums)
        for c in range(classes):
            _move(weight.value[c], weight.velocity[c], weight.start[c], weight.gradient_offset[c], gradient[c], step)
        _move(bias.value, bias.velocity, bias.start, bias.gradient_offset, sums, step)
        done += 1
    return done, losses


@numba.njit(**OPTIONS)
def _logits(x, rows, weight, bias, out):  # type: ignore[no-untyped-def]
    """out[c, i] = <weight[c], x[rows[i]]> + bias[c]."""
    classes, p = weight.shape
    for i in range(0, len(rows), TOGETHER):
        x0, x1, x2, x3 = x[rows[i]], x[rows[i + 1]], x[rows[i + 2]], x[rows[i + 3]]
        x4, x5, x6, x7 = x[rows[i + 4]], x[rows[i + 5]], x[rows[i + 6]], x[rows[i + 7]]
        for c in range(classes):
            w = weight[c]
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = bias[c]
            for j in range(p):
                s0 += w[j] * x0[j]
                s1 += w[j] * x1[j]
                s2 += w[j] * x2[j]
                s3 += w[j] * x3[j]
                s4 += w[j] * x4[j]
                s5 += w[j] * x5[j]
                s6 += w[j] * x6[j]
                s7 += w[j] * x7[j]
            o = out[c, i : i + TOGETHER]
            o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7] = s0, s1, s2, s3, s4, s5, s6, s7


@numba.njit(**OPTIONS)
def _slopes(labels, scores, filled):  # type: ignore[no-untyped-def]
    """Put d loss / d logits where the logits are, and return the loss: the mean cross-entropy of the batch."""
    classes, batch = len(scores), len(labels)
    share = scores.dtype.type(1 / batch)
    loss = 0.0
    for i in range(batch):
        label = labels[i]
        if not 0 <= label < classes:
            raise IndexError("a sample has a label outside the classes")
        top = scores[0, i]
        for c in range(1, classes):
            top = max(top, scores[c, i])
        own, total = scores[label, i] - top, scores.dtype.type(0)
        for c in range(classes):
            scores[c, i] = np.exp(scores[c, i] - top)
            total += scores[c, i]
        loss += np.log(total) - own
        for c in range(classes):
            scores[c, i] *= share / total
        scores[label, i] -= share
    scores[:, batch:filled] = 0
    return loss / batch


@numba.njit(**OPTIONS)
def _gradients(x, rows, slopes, gradient, sums):  # type: ignore[no-untyped-def]
    """gradient[c] = sum_i slopes[c, i] x[rows[i]], sums[c] = sum_i slopes[c, i]."""
    classes, p = gradient.shape
    gradient[:] = 0
    sums[:] = 0
    for i in range(0, len(rows), TOGETHER):
        x0, x1, x2, x3 = x[rows[i]], x[rows[i + 1]], x[rows[i + 2]], x[rows[i + 3]]
        x4, x5, x6, x7 = x[rows[i + 4]], x[rows[i + 5]], x[rows[i + 6]], x[rows[i + 7]]
        for c in range(classes):
            s, g = slopes[c, i : i + TOGETHER], gradient[c]
            s0, s1, s2, s3, s4, s5, s6, s7 = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
            sums[c] += s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7
            for j in range(p):
                g[j] += (
                    s0 * x0[j] + s1 * x1[j] + s2 * x2[j] + s3 * x3[j]
                    + s4 * x4[j] + s5 * x5[j] + s6 * x6[j] + s7 * x7[j]
                )  # fmt: skip


@numba.njit(**OPTIONS)
def _move(value, velocity, start, gradient_offset, gradient, step):  # type: ignore[no-untyped-def]
    real = value.dtype.type
    lr, momentum = real(step.lr), real(step.momentum)
    weight_decay, proximal_weight = real(step.weight_decay), real(step.proximal_weight)
    for j in range(len(value)):
        towards = gradient[j] + gradient_offset[j] + proximal_weight * (value[j] - start[j]) + weight_decay * value[j]
        velocity[j] = momentum * velocity[j] + towards
        value[j] -= lr * velocity[j]

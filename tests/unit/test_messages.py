"""Messages: what goes in comes out, alone and joined with others."""

import io

import numpy as np
import pytest
import torch
from flwr.app import Array, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from app import messages
from app.common.errors import FedgeoError
from app.messages.flower_private import identify


@pytest.fixture(autouse=True)
def identity() -> None:
    identify()


def reply(seed: int, rows: int) -> RecordDict:
    rng = np.random.default_rng(seed)
    arrays = {"ragged": rng.normal(size=(rows, 3)), "same": rng.normal(size=(2,)).astype(np.float32)}
    arrays |= {"count": np.array(rows, dtype=np.int64)}
    record = RecordDict({messages.ARRAYS: messages.to_record(arrays)})
    record[messages.METRICS] = messages.metrics_record({"num-examples": rows, "loss": float(seed)})
    record[messages.CONFIG] = messages.text_content({"seed": seed})[messages.CONFIG]
    return record


@given(st.dictionaries(st.integers(0, 50), st.integers(0, 4), min_size=1, max_size=6))
def test_joined_replies_come_apart_as_they_were(sizes: dict[int, int]) -> None:
    originals = {client: reply(client, rows) for client, rows in sizes.items()}
    joined = messages.join(originals)
    joined[messages.COHORT] = messages.cohort_record(list(originals), {99: "broken"})
    _, parts, errors = messages.split(joined)
    assert errors == {99: "broken"}
    assert list(parts) == list(originals)
    for client, part in parts.items():
        before = messages.from_record(originals[client].array_records[messages.ARRAYS])
        after = messages.from_record(part.array_records[messages.ARRAYS])
        assert before.keys() == after.keys()
        for name in before:
            assert before[name].dtype == after[name].dtype
            np.testing.assert_array_equal(before[name], after[name])
        assert part[messages.METRICS] == originals[client][messages.METRICS]
        assert messages.read_text(part) == {"seed": client}


def test_rows_that_do_not_add_up_are_refused() -> None:
    joined = messages.join({0: reply(0, 2), 1: reply(1, 3)})
    joined[messages.COHORT] = messages.cohort_record([0, 1], {})
    joined.config_records[f"{messages.ARRAYS}.rows"]["ragged"] = [2, 9]
    with pytest.raises(FedgeoError, match="rows"):
        messages.split(joined)


def test_weights_and_extra_are_told_apart() -> None:
    weights, auxiliary = {"linear.weight": torch.ones(2, 3)}, {"control/linear.weight": torch.zeros(2, 3)}
    found, beside = messages.split_weights(messages.weights_record(weights, auxiliary))
    assert found.keys() == weights.keys() and beside.keys() == auxiliary.keys()
    assert torch.equal(found["linear.weight"], weights["linear.weight"])


def test_payload_counts_array_bytes_only() -> None:
    arrays = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.int64), "c": np.array(1.0)}
    content = RecordDict({messages.ARRAYS: messages.to_record(arrays)})
    assert messages.payload_bytes(content) == 3 * 4 * 4 + 5 * 8 + 8


def context(**config: int | str) -> Context:
    return Context(1, 1, dict(config), RecordDict(), {})


def test_a_client_that_raises_leaves_the_others_be() -> None:
    request = messages.cohort_message(Message(RecordDict(), 0, messages.HELLO), 7, [1, 2, 3])

    def handle(client: int, _: RecordDict) -> RecordDict:
        if client == 2:
            raise ZeroDivisionError("by zero")
        return reply(client, 1)

    _, parts, errors = messages.split(messages.answer(request, [1, 2], handle).content)
    assert list(parts) == [1]
    assert errors[2] == "ZeroDivisionError: by zero"
    assert "client 3 is not on this node" in errors[3]


def test_only_simulated_nodes_have_a_place() -> None:
    assert messages.node_place(context(**{"partition-id": 2, "num-partitions": 5})) == (2, 5)
    with pytest.raises(FedgeoError, match="data-path"):
        messages.node_place(context(**{"partition-id": 2, "num-partitions": 5, "data-path": "x"}))


def test_a_view_is_no_copy_and_can_be_sent_on() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    view, sent = messages.View(values[:, :2]), messages.to_record({"a": values[:, :2]})["a"]
    assert np.shares_memory(view.numpy(), values)
    assert (view.dtype, view.shape, view.stype, view.data) == (sent.dtype, sent.shape, sent.stype, sent.data)
    assert view.deflate() == sent.deflate()


def test_split_takes_the_bytes_over_without_copying_them() -> None:
    joined = messages.join({client: reply(client, 1000) for client in (0, 1)})
    joined[messages.COHORT] = messages.cohort_record([0, 1], {})
    array = joined.array_records[messages.ARRAYS]["ragged"]
    data = np.frombuffer(array.data, np.uint8)
    where = data.ctypes.data
    size = data.nbytes
    del data
    _, parts, _ = messages.split(joined)
    pieces = [part.array_records[messages.ARRAYS]["ragged"].numpy() for part in parts.values()]
    assert all(where < piece.ctypes.data < where + size for piece in pieces)
    assert not np.shares_memory(*pieces)
    assert all(piece.flags.writeable for piece in pieces)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', "])
def test_an_array_that_cannot_be_read_is_a_fault_of_its_sender(data: bytes) -> None:
    joined = messages.join({0: reply(0, 2)})
    joined[messages.COHORT] = messages.cohort_record([0], {})
    joined.array_records[messages.ARRAYS]["ragged"].data = data
    with pytest.raises(FedgeoError, match="cannot be read"):
        messages.split(joined)


def test_columns_first_is_read_as_it_was_written() -> None:
    values = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    buffer = io.BytesIO()
    np.save(buffer, values)
    array = Array("float64", (2, 3), "numpy.ndarray", buffer.getvalue())
    np.testing.assert_array_equal(messages.taken_over(array), values)

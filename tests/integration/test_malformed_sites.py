"""Messages between a server and real sites, each valid but for one field; and runs that go on without a bad client."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

import client_app
from app import messages
from app.client.client_states import ClientStates
from app.common.errors import FedgeoError
from app.grids.in_process import InProcessGrid
from tests.integration.test_privacy_sites import RUN, sites
from tests.malformed import LEAST, Change, fresh, of_arrays, of_numbers, of_records
from tests.recorded_runs import RUNS, domains
from tests.running import run_in_process
from tests.sites import run_over_sites
from tests.transcript import arrays_of

Requests = dict[str, tuple[Message, Any]]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Requests:
    """The first request of each kind that a site got, and its context."""
    folder, kept, call = tmp_path_factory.mktemp("asked"), Requests(), InProcessGrid._call

    def called(self: InProcessGrid, message: Message) -> Message:
        place = message.metadata.dst_node_id
        kept.setdefault(message.metadata.message_type, (message, self.contexts[place]))
        return call(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcessGrid, "_call", called)
        run_over_sites(folder / "run", sites(folder), *RUN)
    return kept


def agreed_faults(content: RecordDict) -> Iterator[Change]:
    """What every message to a site says: the run, the code, the classes, and whom it asks."""
    tried: dict[str, tuple[Any, ...]] = {
        "run": ("", "0" * 15, "0" * 17, "G" * 16, "../../../../etc/", 7, 1.5, ["0" * 16], b"0" * 16),
        "code": ("", "0" * 64, "f" * 63, 7, 0.5, ["f" * 64], b"f"),
        "classes": (["cat"], ["cat", "cat"], ["cat", "Dog"], [], "cat", 3, [1, 2], [0.5, 1.5], ["", "cat"]),
    }
    record = content.config_records[messages.AGREED]
    for name, values in tried.items():
        if name not in record:
            continue
        for value in values:
            made = fresh(content)
            made.config_records[messages.AGREED][name] = value
            yield f"{name}={value!r}", made
        if name != "classes":
            made = fresh(content)
            del made.config_records[messages.AGREED][name]
            yield f"no {name}", made
    rng = np.random.default_rng(0)
    for code in (rng.bytes(32).hex() for _ in range(200)):
        made = fresh(content)
        made.config_records[messages.AGREED]["code"] = code
        yield f"code {code[:12]}", made
    made = fresh(content)
    del made[messages.AGREED]
    yield "nothing agreed", made
    for value in ([], [0, 1], [0, 0], ["0"], "0", 0, [0.5], [-1]):
        if messages.COHORT in content.config_records:
            made = fresh(content)
            made.config_records[messages.COHORT]["clients"] = value
            yield f"asks {value}", made


def final_faults(content: RecordDict) -> Iterator[Change]:
    for seed in range(4):
        yield from of_arrays(content, np.random.default_rng(seed))
    yield from of_records(content, (messages.COHORT, messages.AGREED))


KINDS = {
    messages.PLACE: (agreed_faults,),
    messages.HELLO: (agreed_faults,),
    messages.STATISTICS: (agreed_faults,),
    messages.GEOMETRY: (agreed_faults,),
    messages.TRAIN: (agreed_faults,),
    messages.EVALUATE: (agreed_faults,),
    messages.FINAL: (agreed_faults, final_faults),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_serves_no_malformed_request(kind: str, asked: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an error for the server, and nothing is kept of it."""
    kept: list[str] = []
    monkeypatch.setattr(ClientStates, "save", lambda *_: kept.append("the state of a client"))
    for module in ("app.client.geometry_store", "app.client.site_node"):
        monkeypatch.setattr(f"{module}.write_atomic", lambda path, *_, **__: kept.append(path.name))
    monkeypatch.setattr("app.client.site_node.save_model", lambda path, *_: kept.append(path.name))
    monkeypatch.setattr("app.common.files.os.fsync", lambda _: None)  # thousands of them take minutes
    request, context = asked[kind]
    tried = 0
    for what, content in (change for faults in KINDS[kind] for change in faults(request.content)):
        tried += 1
        reply = client_app.app(Message(content, request.metadata.dst_node_id, kind), context)
        if not reply.has_error():
            _, parts, errors = messages.split(reply.content)
            assert not parts and all(errors.values()), f"served: {what}"
    assert tried >= LEAST and kept == []


def odd_values() -> Iterator[Any]:
    rng = np.random.default_rng(0)
    yield from ("", "x" * 65, "a\nb", "\0", "\x1b[2J", 0, 1.5, True, ["a"], [], b"a")
    yield from ([0], [1, 0], [0, 1, 2], [-1, 2], [2, 2], ["0", "1"], [0.5, 1.0], [0, 2**62])
    yield from ("".join(map(chr, rng.integers(0, 32, rng.integers(1, 60)))) for _ in range(120))
    yield from ([int(n), int(n) - int(k)] for n, k in rng.integers(0, 99, (120, 2)))


@pytest.mark.parametrize(
    ("read", "name", "valid"), [(messages.read_site, "name", "berlin"), (messages.read_place, "place", [0, 2])]
)
def test_no_malformed_answer_to_the_first_message_is_taken(
    read: Callable[[RecordDict], Any], name: str, valid: Any
) -> None:
    content = RecordDict({messages.CONFIG: ConfigRecord({name: valid})})
    assert read(content) == (valid if name == "name" else tuple(valid))
    changes = [RecordDict({messages.CONFIG: ConfigRecord({name: value})}) for value in odd_values()]
    changes += [made for _, made in of_records(content)]
    changes += [RecordDict({messages.CONFIG: ConfigRecord({name: valid, "more": 1})}), RecordDict()]
    changes += [made for what, made in of_numbers(content, messages.CONFIG, {}) if what not in ("name='1'",)]
    assert len(changes) >= LEAST
    for change in changes:
        with pytest.raises(FedgeoError):
            pytest.fail(f"taken for good: {read(change)}")


GOES_ON = {  # each way of putting clients' replies together
    "statistics": ("ggeur", messages.STATISTICS),
    "shift means": ("shift", messages.STATISTICS),
    "one-round covariances": ("lda", messages.STATISTICS),
    "one-round means": ("means_only", messages.STATISTICS),
    "batch means": ("fedmix", messages.STATISTICS),
    "gaussians": ("fedfa", messages.STATISTICS),
    "mean": ("ggeur", messages.TRAIN),
    "prototypes": ("fedproto", messages.TRAIN),
    "projavg": ("projavg", messages.TRAIN),
    "rlavg": ("rlavg", messages.TRAIN),
    "class means": ("mdm", messages.SUMS),
    "gradients": ("tangent_lr", messages.SUMS),
}


@pytest.mark.parametrize(("run", "kind"), GOES_ON.values(), ids=GOES_ON)
def test_a_bad_reply_is_dropped_by_name_and_the_run_goes_on(
    run: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Client 0 sends one value that is no number; where none may fail the run ends, and says who it was."""
    whole = messages.answer

    def answer(message: Message, hosted: list[int], handle: Any, tell: Any) -> Message:
        def spoilt(client: int, content: RecordDict) -> RecordDict:
            reply = handle(client, content)
            if client != 0 or message.metadata.message_type != kind:
                return reply
            arrays = arrays_of(reply)
            name = next(name for name, value in arrays.items() if value.dtype.kind == "f" and value.size)
            arrays[name].flat[0] = np.nan
            reply["arrays"] = messages.to_record(arrays)
            return reply

        return whole(message, hosted, spoilt, tell)

    monkeypatch.setattr(messages, "answer", answer)
    words = (*RUNS[run], *((f"data.path={domains(tmp_path / 'domains.npz')}",) if run == "shift" else ()))
    summary = run_in_process(tmp_path / "run", *words, "federation.max_failures=0.5")
    assert summary["status"] == "completed" and summary["final"] is not None
    assert f"client 0, {kind}: client 0" in (tmp_path / "run" / "log.txt").read_text()
    with pytest.raises(FedgeoError, match="client 0: client 0: "):
        run_in_process(tmp_path / "strict", *words, "federation.max_failures=0")

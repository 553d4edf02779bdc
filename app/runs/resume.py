"""Going on with a run that was broken off: from its last checkpoint, as if nothing had happened.

``<run_dir>/checkpoint`` holds what that takes: run.json (how the run was started), last.safetensors (where it stands),
and what the clients were sent before the first round, under its digest.
"""

import fcntl
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from omegaconf import OmegaConf

from ..common.errors import FedgeoError
from ..common.files import write_atomic
from ..config.schema import Config
from .checkpoint import Checkpoint
from .reader import flatten

FOLDER, ORIGIN, LAST, LOCK = "checkpoint", "run.json", "last.safetensors", "lock"
CHANGEABLE = {  # what changes no number of the rounds that both runs have
    *("resume", "run_dir", "sweep_dir", "cache_dir", "tracking", "engine"),
    *("federation.rounds", "federation.max_failures", "federation.clients_per_node"),
    *("federation.deadline", "federation.hello_deadline", "federation.min_nodes", "federation.ray_address"),
}
LOCK_SECONDS = 15.0  # that the processes of a killed run have to be gone


@dataclass(frozen=True)
class Origin:
    """How a run was started. run: 16 hexadecimal digits that name it, the same however often it is resumed.

    experiment, overrides: what its processes were given. state: where simulated nodes keep what they keep.
    """

    run: str
    experiment: str
    overrides: str
    state: str | None

    def save(self, run_dir: Path) -> None:
        write_atomic(run_dir / FOLDER / ORIGIN, (json.dumps(asdict(self), indent=2) + "\n").encode(), durable=True)

    @staticmethod
    def load(run_dir: Path) -> "Origin":
        """Raises FedgeoError where the directory is not that of a run that can be resumed."""
        try:
            return Origin(**json.loads((run_dir / FOLDER / ORIGIN).read_text()))
        except (OSError, ValueError, TypeError):
            raise FedgeoError(f"resume={run_dir}: no run was begun there (it has no {FOLDER}/{ORIGIN})") from None


def check_resume(run_dir: Path, config: Config) -> Checkpoint | None:
    """The last checkpoint of the run in ``run_dir``, None where it was broken off before its first.

    Raises FedgeoError for a configuration that is not the run's own, by the key that differs.
    """
    Origin.load(run_dir)
    try:
        before = OmegaConf.to_container(OmegaConf.load(run_dir / "config.yaml"))
    except Exception as error:  # whatever a yaml parser makes of half a file
        raise FedgeoError(f"resume={run_dir}: its config.yaml cannot be read ({type(error).__name__})") from None
    assert isinstance(before, dict)
    was, now = dict(flatten({str(k): v for k, v in before.items()})), dict(flatten(config.model_dump(mode="json")))
    for key, value in now.items():
        if key not in CHANGEABLE and was.get(key, value) != value:
            raise FedgeoError(
                f"resume={run_dir}: {key} is {was[key]} there, not {value}: a resumed run may only get more "
                "federation.rounds, other deadlines or another engine"
            )
    checkpoint = Checkpoint.load(run_dir / FOLDER / LAST)
    rounds = config.federation.rounds
    if rounds < int(was["federation.rounds"]):
        raise FedgeoError(f"resume={run_dir}: federation.rounds={rounds} is below the run's {was['federation.rounds']}")
    if rounds == was["federation.rounds"] and completed(run_dir):
        raise FedgeoError(f"resume={run_dir}: the run is complete; to go on, give federation.rounds above {rounds}")
    return checkpoint


def changed(before: str, now: str) -> str:
    """What differs between two texts of partition.json: of a deployment which site, and what to do."""
    was, found = (
        {site["site"]: (site["domain"], site["counts"]) for site in json.loads(text).get("sites", ())}
        for text in (before, now)
    )
    if away := ", ".join(sorted(was.keys() - found.keys())):
        return (
            f"{away} took part and is away: start its SuperNode, wait until `flwr supernode list` shows it online, and "
            "resume again"
        )
    if new := ", ".join(sorted(found.keys() - was.keys())):
        return f"{new} did not take part: resume while its SuperNode is stopped"
    if other := ", ".join(sorted(name for name in was if was[name] != found[name])):
        return f"{other} did not answer, or holds other data than before: its own log.txt says what went wrong"
    return "the data, or who holds what, has changed: see partition.json"


def completed(run_dir: Path) -> bool:
    """Whether the run in ``run_dir`` came to its end."""
    try:
        return bool(json.loads((run_dir / "summary.json").read_text())["status"] == "completed")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def rewind(run_dir: Path, number: int) -> list[dict[str, Any]]:
    """Take the directory back to where it stood after round ``number``, and return the lines of its rounds.

    A torn last line and the lines of later rounds are dropped, and so are the files of the run's end.
    """
    for name in ("summary.json", "report.html"):
        (run_dir / name).unlink(missing_ok=True)
    path = run_dir / "rounds.jsonl"
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        try:
            row = json.loads(line)
            if row["round"] > number:
                break
        except (ValueError, KeyError, TypeError):  # a power cut can leave a line that was never written whole
            break
        rows.append(row)
    if [row["round"] for row in rows] != list(range(1, number + 1)):
        raise FedgeoError(f"{path}: the lines of rounds 1 to {number} are not all there: the run cannot be continued")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomic(path, lines.encode(), durable=True)
    return rows


def lock(run_dir: Path) -> TextIO:
    """Only one process at a time writes a run directory, until the file returned is closed or the process ends.

    Raises FedgeoError if another process still holds it after a while.
    """
    path = run_dir / FOLDER / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                file.close()
                raise FedgeoError(f"{run_dir}: a process is still at work there; wait for it, or stop it") from None
            time.sleep(0.2)
            continue
        except OSError:  # a file system without locks
            pass
        return file

#!/usr/bin/env python3
"""Time what fedgeo computes against a reference that computes the same: one thread, alternating pairs, one run.

No ratio is told unless both sides gave the same result. Reference packages are those of `pip install '.[dev]'`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing

# isort: split
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from app.common.errors import FedgeoError  # noqa: E402
from app.messages import peak_memory_mb  # noqa: E402
from scripts.benchmarks.aggregate import aggregate  # noqa: E402
from scripts.benchmarks.augment import augment  # noqa: E402
from scripts.benchmarks.clients import clients  # noqa: E402
from scripts.benchmarks.cohort import cohort  # noqa: E402
from scripts.benchmarks.encode import encode  # noqa: E402
from scripts.benchmarks.engines import engines, overhead  # noqa: E402
from scripts.benchmarks.pair import Pair  # noqa: E402
from scripts.benchmarks.statistics import statistics as class_statistics  # noqa: E402

EPILOG = """\
examples:
  scripts/benchmark.py spdnet            a training step of SPDnet against spd_learn's
  scripts/benchmark.py spdnet --json     the same as one JSON object
  scripts/benchmark.py cohort            100 clients' local training against a plain loop
  scripts/benchmark.py engines           a round over Flower against one client a node; takes minutes
  scripts/benchmark.py overhead          a round in process against its computation alone
  scripts/benchmark.py clients           500 clients over Flower, their time and memory; takes minutes
"""
# --- the benchmarks: each gives one pair a setting; the others stand in scripts/benchmarks -----------------


def spdnet() -> list[Pair]:
    """A training step of SPDnet, forward, backward and Adam, against spd_learn's; both settings of the paper."""
    return [_spdnet_step(64, 18, 4, 1e-2), _spdnet_step(60, 22, 7, 1e-1)]


def _spdnet_step(channels: int, hidden: int, classes: int, epsilon: float) -> Pair:
    from app.models.spdnet import SPDNet

    x, y = _covariances(channels, classes)

    def build_ours() -> SPDNet:
        model = SPDNet(channels, [hidden], classes, epsilon)
        model.reset(torch.Generator().manual_seed(1))
        return model

    def build_reference() -> Any:
        try:
            from spd_learn.models import SPDNet as Peer
        except ImportError:
            raise FedgeoError("spd_learn is not installed: pip install '.[dev]'") from None

        weights = build_ours().export()
        sizes = {"subspacedim": hidden, "n_chans": channels, "n_outputs": classes}
        torch.manual_seed(1)  # it draws its weights from the global state; they are replaced here
        model = Peer(input_type="cov", threshold=epsilon, upper=False, **sizes).double()
        with torch.no_grad():
            model.bimap.weight = weights["stiefel.0"][None]  # again in float64: it was drawn in float32
            model.classifier.weight.copy_(weights["linear.weight"])
            model.classifier.bias.copy_(weights["linear.bias"])
            model.reeig.threshold_.fill_(epsilon)  # it keeps it in float32, 2e-8 off
        return model

    def step(model: Any) -> Callable[[], None]:
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

        def call() -> None:
            optimiser.zero_grad()
            loss(model).backward()
            optimiser.step()

        return call

    def loss(model: Any) -> torch.Tensor:
        outputs = model(x)
        return F.cross_entropy(getattr(outputs, "logits", outputs), y)

    def agree() -> None:
        ours, reference = build_ours(), build_reference()
        mine, theirs = loss(ours), loss(reference)
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=0)
        mine.backward()
        theirs.backward()
        for own, other in zip(ours.linear.parameters(), reference.classifier.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-12)

    return Pair(
        f"{channels} -> {hidden} channels, {classes} classes, batch 64, float64",
        lambda: step(build_ours()),
        lambda: step(build_reference()),
        agree,
    )


def _covariances(channels: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """64 covariances that look like EEG: eigenvalues from about 1e-1 to 1e3 microvolt^2; and their classes."""
    generator = torch.Generator().manual_seed(2)
    mix = torch.linalg.qr(torch.randn(channels, channels, dtype=torch.float64, generator=generator))[0]
    scale = torch.logspace(1.5, -0.5, channels, dtype=torch.float64)
    x = mix * scale @ torch.randn(64, channels, 480, dtype=torch.float64, generator=generator)
    return x @ x.mT / 479, torch.randint(0, classes, (64,), generator=generator)


BENCHMARKS: dict[str, Callable[[], list[Pair]]] = {
    "cohort": cohort,
    "statistics": class_statistics,
    "augment": augment,
    "spdnet": spdnet,
    "aggregate": aggregate,
    "engines": engines,
    "overhead": overhead,
    "clients": clients,
    "encode": encode,
}


# --- measuring them -----------------------------------------------------------------------------------


def measure(name: str, pairs: int | None) -> dict[str, Any]:
    """The figures of every setting of a benchmark; the least favourable one's stand at the top."""
    found = []
    for index, pair in enumerate(BENCHMARKS[name]()):
        number = pairs or pair.pairs
        figures: dict[str, Any] = {"setting": f"{pair.setting}, one thread, median of {number} alternating pairs"}
        try:
            pair.agree()
        except AssertionError as error:
            raise FedgeoError(f"{name}, {pair.setting}: the results differ, so there is no ratio: {error}") from None
        found.append(figures | times(pair, number) | memory(name, index, pair))
    return {"name": name, **min(found, key=lambda figures: figures["ratio"]), "settings": found}


def times(pair: Pair, number: int) -> dict[str, float]:
    """Median seconds of a call of each side, and the median of the pairs' ratios."""
    ours, reference = pair.ours(), pair.reference()
    for call in (ours, reference):
        for _ in range(pair.warm_up):
            call()
    taken = [(pair.seconds(ours), pair.seconds(reference) / pair.share) for _ in range(number)]
    return {
        "ours_s": statistics.median(a for a, _ in taken),
        "reference_s": statistics.median(b for _, b in taken),
        "ratio": statistics.median(b / a for a, b in taken),
    }


def memory(name: str, index: int, pair: Pair) -> dict[str, float]:
    """Peak memory in MB: as the pair tells, or of a process that runs one side only."""
    if pair.memory is not None:
        return dict(zip(("ours_mb", "reference_mb"), pair.memory(), strict=True))
    found = {}
    for side in ("ours", "reference"):
        command = [sys.executable, __file__, name, "--side", side, str(index)]
        found[f"{side}_mb"] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def peak_mb() -> float:
    """The largest resident size of this program in MB; what getrusage tells includes the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return peak_memory_mb()
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 measured, 1 the results differ or a package is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=BENCHMARKS, help="what to time")
    parser.add_argument("--pairs", type=int, help="timed calls of each side, at least 5; by default what suits it")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)  # the process that memory() measures
    options = parser.parse_args(arguments)
    if options.pairs is not None and options.pairs < 5:
        parser.error("--pairs must be at least 5")
    torch.set_num_threads(1)
    try:
        if options.side:
            side, index = options.side
            pair = BENCHMARKS[options.name]()[int(index)]
            call = getattr(pair, side)()
            for _ in range(max(1, pair.warm_up)):
                call()
            print(peak_mb())
            return 0
        found = measure(options.name, options.pairs)
    except FedgeoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found))
        return 0
    for figures in found["settings"]:
        print(
            f"{found['name']}: {figures['ratio']:.2f} times faster, {1e3 * figures['ours_s']:.2f} ms against "
            f"{1e3 * figures['reference_s']:.2f} ms, {figures['ours_mb']:.0f} MB against "
            f"{figures['reference_mb']:.0f} MB ({figures['setting']})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

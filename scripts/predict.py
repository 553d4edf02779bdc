#!/usr/bin/env python3
"""A trained model on new images, embeddings or EEG recordings: the class of each, with probabilities.

The model file of a run says itself what it reads: input that does not fit is refused. An EEG model that recentres, and
EEGNet, take what they need from the new trials themselves, without labels: give a whole session at a time.
"""

import argparse
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing
from app.common.errors import FedgeoError  # noqa: E402
from app.common.printable import shown  # noqa: E402
from app.tools.command import deliver, say  # noqa: E402

if TYPE_CHECKING:
    from app.tools.predict import Predictions

EPILOG = """\
examples:
  scripts/predict.py runs/mine/model-best.safetensors photo.jpg
  scripts/predict.py runs/mine/model-best.safetensors photos/ --format csv --out predictions.csv
  scripts/predict.py runs/mine/model-best.safetensors embeddings.npz      X or <domain>_X, one row a sample
  scripts/predict.py runs/eeg/model-best.safetensors session.edf          trials at the annotations of training
  scripts/predict.py runs/eeg/model-best.safetensors session.edf --events go
  scripts/predict.py runs/eeg/model-best.safetensors session.edf --windows 3 3
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 done, 2 refused."""
    options = parse(arguments)
    from app.reports.tables import comma_separated, text  # imported where it is needed: help need not wait for it

    try:
        with redirect_stdout(sys.stderr):  # what libraries have to say must not get among the predictions
            found = run(options)
        table = found.table()
        content = comma_separated([table]) if options.format == "csv" else text([table]).lstrip("\n")
        if not deliver(content, options.out, "predictions"):
            return 0
    except (FedgeoError, OSError) as error:
        say(f"error: {error}")
        return 2
    if options.format == "csv" or options.out is not None:
        for note in found.notes:
            print(shown(note), file=sys.stderr)
    return 0


def run(options: argparse.Namespace) -> "Predictions":
    """The predictions that the command line asks for."""
    from app.tools.predict import kind_of, load_model, predict_embeddings, predict_images

    trained = load_model(options.model)
    kind = kind_of(options.input)
    if kind == "images":
        return predict_images(trained, options.input, device=options.device, checkpoint=options.checkpoint)
    if kind == "embeddings":
        return predict_embeddings(trained, options.input)
    from app.tools.predict_eeg import predict_recordings

    return predict_recordings(
        trained,
        options.input,
        events=options.events,
        windows=None if options.windows is None else tuple(options.windows),
        scale=options.scale,
        resample=options.resample,
        subject_pattern=options.subject_pattern,
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", type=Path, help="model-best.safetensors or model-final.safetensors of a run, or a site's copy")
    add("input", type=Path, help="a file, or a folder of files")
    add("--format", choices=("table", "csv"), default="table")
    add("--out", type=Path, metavar="FILE", help="write there instead of to the terminal")
    images = parser.add_argument_group("images").add_argument
    images("--device", choices=("auto", "cpu", "cuda"), default="auto")
    images("--checkpoint", type=Path, metavar="FILE", help="the encoder's weights, where there is no network")
    eeg = parser.add_argument_group("EEG").add_argument
    eeg("--events", nargs="+", default=(), metavar="ANNOTATION", help="what begins a trial (default: as in training)")
    eeg("--windows", nargs=2, type=float, metavar=("LENGTH", "STEP"), help="cut windows of so many seconds instead")
    eeg("--scale", type=float, default=1.0, help="a factor for recordings whose header tells the wrong unit")
    eeg("--resample", action="store_true", help="bring another sampling rate to the model's")
    eeg("--subject-pattern", help="as data.subject_pattern")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

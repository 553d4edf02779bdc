#!/usr/bin/env python3
"""Encode a run's images beforehand: into the cache, where runs find them, or into a file for data=features."""

import argparse
import os
import sys
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, str(os.cpu_count() or 1))  # nothing else runs beside it
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing
from app.common.errors import FedgeoError  # noqa: E402
from app.config.compose import load  # noqa: E402
from app.tools.command import say  # noqa: E402

EPILOG = """\
examples:
  scripts/embed.py experiment=pacs data.path=DIR           the images that this run will use, into the cache
  scripts/embed.py experiment=digits device=cuda --all     the whole data set, for any seed and fraction
  scripts/embed.py data=domain_folder data.path=DIR encoder=efficientnet_lite0 --npz features.npz
                                                           the whole data set, to be used as data=features
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 done, 2 refused or failed, 130 interrupted (what is encoded is in the cache)."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="hydra overrides, as in conf/")
    parser.add_argument("--all", action="store_true", help="every image of the data set, not only what the run uses")
    parser.add_argument("--npz", metavar="FILE", type=Path, help="also write all embeddings, not normalised, to FILE")
    options = parser.parse_intermixed_args(arguments)
    try:
        config = load(tuple(options.overrides))
        from app.data.images.encode import encode, write_features  # after what may be wrong: it takes seconds
        from app.tools.terminal import Encoding

        with Encoding() as progress:
            encoded = encode(config, whole=options.all or options.npz is not None, progress=progress)
        say(f"{len(encoded.rows)} embeddings of {encoded.values.shape[1]} dimensions by {encoded.encoder}")
        say(f"cache: {encoded.cache}")
        if options.npz is not None:
            say(f"features: {write_features(encoded, options.npz)}")
    except FedgeoError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted: what was encoded is in the cache; the same command goes on from there")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

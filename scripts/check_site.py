#!/usr/bin/env python3
"""Check a site's data before it joins a deployment: nothing is sent.

PATH is the data (a folder of images by class, an npz of embeddings, a folder of recordings), or the site's node-config
(site.toml), whose folders are then checked too. Exits with 1 where something is wrong.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing
from app.tools.site_check import check_site  # noqa: E402
from app.tools.site_findings import words  # noqa: E402
from app.tools.terminal import say  # noqa: E402

EPILOG = """\
examples:
  scripts/check_site.py /data/images
  scripts/check_site.py site.toml experiment=eeg_folder 'data.events={left_hand: T1, right_hand: T2}'
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 the site can join, 1 it cannot."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="the data, or the node-config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the run to be joined")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="the site's policy file")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_intermixed_args(arguments)
    with contextlib.redirect_stdout(io.StringIO()):  # readers of recordings print what they think of file names
        found = check_site(options.path, options.overrides, options.policy)
    if options.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        for line in words(found):
            say(line)
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

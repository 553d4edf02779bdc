#!/usr/bin/env python3
"""Check a site's data, and its way to the server, before it joins a deployment: nothing is sent.

PATH is the data (a folder of images by class, an npz of embeddings, a folder of recordings), or the site's node-config
(site.toml), whose folders are then checked too. --superlink tries the connection to the server and its certificate,
without joining a run. Exits with 1 where something is wrong.
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
from app.common.errors import FedgeoError  # noqa: E402
from app.tools.command import say  # noqa: E402

EPILOG = """\
examples:
  scripts/check_site.py /data/images
  scripts/check_site.py --superlink server.example.org:8000 --root-certificates ca.crt
  scripts/check_site.py site.toml experiment=eeg_folder 'data.events={left_hand: T1, right_hand: T2}'
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 the site can join, 1 it cannot."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?", metavar="PATH", help="the data, or the node-config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the run to be joined")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="the site's policy file")
    parser.add_argument("--superlink", metavar="HOST:PORT", help="the server's SuperLink, as for flower-supernode")
    parser.add_argument(
        "--root-certificates", type=Path, metavar="FILE", help="with --superlink: the authority's ca.crt"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_intermixed_args(arguments)
    if options.path is None and options.superlink is None:
        parser.error("give PATH, --superlink or both")
    reached = options.superlink is None or reach(options.superlink, options.root_certificates)
    if options.path is None:
        return 0 if reached else 1
    from app.tools.site_check import check_site  # imported where it is needed: help need not wait for it
    from app.tools.site_findings import words

    with contextlib.redirect_stdout(io.StringIO()):  # readers of recordings print what they think of file names
        found = check_site(options.path, options.overrides, options.policy)
    if options.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        for line in words(found):
            say(line)
    return 0 if found.ok and reached else 1


def reach(superlink: str, certificate: Path | None) -> bool:
    """Whether the SuperLink can be used from here; one line, beside what --json prints, says so or why not."""
    from app.tools.superlink_check import check_superlink

    try:
        print(check_superlink(superlink, certificate), file=sys.stderr)
    except FedgeoError as error:
        say(f"error: {error}")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

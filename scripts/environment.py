"""Importing this says in one line where a script was started with a Python that lacks the app's packages."""

import importlib.util
import sys

NEEDED = ("numpy", "torch", "flwr", "hydra")

if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
    advice = f"run make once, then .venv/bin/python {' '.join(sys.argv)}"
    print(f"error: {sys.executable} lacks {', '.join(missing)}: {advice}", file=sys.stderr)
    sys.exit(2)

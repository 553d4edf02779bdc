"""What all tests share: one thread, how many examples a law is tried on, which worker does what, where data lies.

Files stay whole, on one worker of pytest-xdist (`--dist loadfile`), as their tests share fixtures. What takes longest
begins first.
"""

import os
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "600")  # a minute, by default

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parent.parent
# how long an example takes is a matter of the machine's load, and no fault
for _profile, _examples in (("dev", 25), ("ci", 50)):
    settings.register_profile(
        _profile, max_examples=_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

ORDER = ("system", "integration", "unit")
LONGEST = (
    *("test_deployment", "test_kills_simulation", "test_kills_deployment", "test_engines", "test_kills", "test_sweep"),
    *("test_flower_methods", "test_comparison", "test_resume"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[int, int]:
        folder, name = item.path.relative_to(ROOT / "tests").parts[0], item.path.stem
        return ORDER.index(folder), LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of small real data; tests that need it skip, with a reason, where it is not."""
    folder = Path(os.environ.get("FEDGEO_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}: set FEDGEO_TEST_DATA to its folder")
    return folder

"""Runs in this process draw no figures, but where a test asks for them (``tests.running.drawing``); sites with data."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.launch.deployment import LocalSite
from tests.running import draw_nothing
from tests.sites import digit_sites


@pytest.fixture(scope="package", autouse=True)
def without_figures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[LocalSite]:
    return digit_sites(tmp_path_factory.mktemp("dealt"))


@pytest.fixture
def sites(dealt: list[LocalSite], tmp_path: Path) -> list[LocalSite]:
    """The same data, with folders for state and output that no other test has written to."""
    return [LocalSite(site.name, site.data, tmp_path / site.name) for site in dealt]

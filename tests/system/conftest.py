"""Runs in this process draw no figures, but where a test asks for them with ``tests.running.drawing``."""

from collections.abc import Iterator

import pytest

from tests.running import draw_nothing


@pytest.fixture(scope="package", autouse=True)
def without_figures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield

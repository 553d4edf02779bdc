"""log.txt: what a run's processes say goes to that run's folder and to whoever listens."""

import logging
from pathlib import Path

from app.common.logs import listening, log_to

log = logging.getLogger("app.somewhere")


def test_each_run_has_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    heard: list[str] = []
    log_to(tmp_path / "one")
    log_to(tmp_path / "one")
    log.info("first")
    log_to(tmp_path / "two")
    with listening(heard.append):
        log.warning("second")
    log.info("third")
    first, second = ((tmp_path / name / "log.txt").read_text().splitlines() for name in ("one", "two"))
    assert [line.split(" ", 1)[1] for line in first] == ["first"]
    assert [line.split(" ", 1)[1] for line in second] == ["second", "third"]
    assert heard == second[:1]

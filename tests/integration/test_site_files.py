"""What a site writes: whom it lets in, what happens where it cannot be written, and by which name a site is told."""

import errno
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.client import audit
from app.common.errors import FedgeoError
from app.runs.resume import changed
from tests.running import run_in_process
from tests.sites import digit_sites, run_over_sites

SHORT = ("federation.rounds=1", "training.epochs=1")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & 0o077]


def test_what_a_site_keeps_is_its_owners_alone(tmp_path: Path) -> None:
    """State, cache, scores, model, logs, in mid-run and afterwards; a site's folder that was open is closed."""
    sites = digit_sites(tmp_path, 2)
    sites[0].output.mkdir(mode=0o755)
    seen: list[Path] = []

    def in_mid_run(_: Any) -> None:
        for site in sites:
            seen.extend([path for path in (site.folder / "state").rglob("*") if path.is_file()])
            assert open_to_others(site.folder / "state") == open_to_others(site.output) == []

    run_over_sites(tmp_path / "run", sites, *SHORT, "method=scaffold", on_round=in_mid_run)
    kept = {path.suffix for path in seen}
    assert {".safetensors", ".npy"} <= kept  # clients' state and shapes, embeddings
    for site in sites:
        assert len([path for path in site.output.rglob("*") if path.is_file()]) >= 5
        assert open_to_others(site.folder / "state") == open_to_others(site.output) == []
    assert (tmp_path / "run" / "summary.json").stat().st_mode & 0o044  # a run directory is for a group to read


def test_what_simulated_clients_keep_is_the_users_alone(tmp_path: Path) -> None:
    seen: list[Path] = []

    def in_mid_run(_: Any) -> None:
        seen.extend((tmp_path / "run" / "state").rglob("*"))
        assert open_to_others(tmp_path / "run" / "state") == []

    run_in_process(tmp_path / "run", *SHORT, "method=scaffold", on_round=in_mid_run)
    assert seen


def test_a_site_that_cannot_write_answers_nothing_and_tells_no_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = digit_sites(tmp_path, 3)
    sites[1].output.write_text("a file is in the way")
    with caplog.at_level(logging.WARNING, logger="app"):
        summary = run_over_sites(tmp_path / "run", sites, *SHORT, "augmentation=none")
    assert summary["status"] == "completed"
    (left_out,) = [text for text in caplog.messages if text.startswith("a node is left out")]
    assert "site site-2 answers nothing, for it cannot write what it must keep (File exists)" in left_out
    assert str(tmp_path) not in left_out


def test_a_full_disk_in_mid_run_is_told_by_the_sites_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = audit.append_line

    def full(path: Path, line: str) -> None:
        if "site-2" in str(path) and '"message": "train"' in line:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, line)

    monkeypatch.setattr(audit, "append_line", full)
    enough = (*SHORT, "augmentation=none", "federation.max_failures=0.4")
    with caplog.at_level(logging.WARNING, logger="app"):
        run_over_sites(tmp_path / "run", digit_sites(tmp_path, 3), *enough)
    (told,) = [text for text in caplog.messages if text.startswith("client ")]
    assert told.startswith("client 1 (site-2), train: site site-2 answers nothing")
    assert "(No space left on device)" in told and str(tmp_path) not in told


def test_a_run_that_diverges_says_one_line_a_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="app"), pytest.raises(FedgeoError, match="not finite"):
        run_in_process(tmp_path / "run", *SHORT, "augmentation=none", "training.lr=1e38")
    told = [text for text in caplog.messages if "not finite" in text]
    assert all(re.match(r"client \d, train: ", text) for text in told) and 0 < len(told) <= 10
    assert len({text.split(",")[0] for text in told}) == len(told)
    assert "Traceback" not in (tmp_path / "run" / "log.txt").read_text()


def test_a_resumed_run_names_the_site_that_is_away() -> None:
    def sites(**held: int) -> str:
        lines = ", ".join(
            f'{{"client": {k}, "site": "{name}", "domain": "{name}", "counts": [{n}]}}'
            for k, (name, n) in enumerate(held.items())
        )
        return f'{{"classes": ["cat"], "sites": [{lines}]}}'

    before = sites(berlin=10, paris=20)
    assert changed(before, sites(paris=20)).startswith("berlin took part and is away: start its SuperNode")
    assert changed(before, sites(berlin=10, paris=20, rome=10)).startswith("rome did not take part")
    assert changed(before, sites(berlin=0, paris=20)).startswith("berlin did not answer, or holds other data")
    assert changed('{"clients": []}', '{"clients": [1]}').startswith("the data, or who holds what, has changed")

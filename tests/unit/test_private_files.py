"""Whom folders and files let in: what is private stays so, and what is made in it is private too."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.common.errors import FedgeoError, cause
from app.common.files import append_line, atomic_folder, make_folder, private_files, private_folder, write_atomic
from app.config.compose import load
from app.data.cache_folder import cache_dir


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


def test_what_is_made_in_a_private_folder_is_private(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(0o755)
    for name in ("closed", "open"):
        inner = tmp_path / name / "a" / "b"
        if name == "closed":
            private_folder(inner.parent)
        write_atomic(inner / "file", b"1", durable=True)
        make_folder(inner / "c")
        with atomic_folder(inner / "d") as folder:
            (folder / "x").write_text("x")
    closed, opened = tmp_path / "closed", tmp_path / "open"
    assert {mode(closed / path) for path in (".", "a", "a/b", "a/b/c", "a/b/d")} == {"0o700"}
    assert mode(closed / "a/b/file") == "0o600"
    assert {mode(opened / path) for path in ("a", "a/b", "a/b/c", "a/b/d")} == {"0o755"}
    assert mode(opened / "a/b/file") == "0o644"


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(0o755)
    private_folder(tmp_path / "old")
    assert mode(tmp_path / "old") == "0o700"


def test_a_file_in_the_way_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for make in (private_folder, make_folder):
        with pytest.raises(OSError, match="file"):
            make(tmp_path / "file" / "folder")


def test_whatever_writes_within_writes_for_its_owner_alone(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "within").write_text("")
    (tmp_path / "after").write_text("")
    assert (mode(tmp_path / "within"), mode(tmp_path / "after")) == ("0o600", "0o644")


def test_the_users_own_cache_is_closed_and_a_shared_one_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shared = tmp_path / "shared"
    shared.mkdir(0o755)
    assert cache_dir(load(f"cache_dir={shared}")) == shared and mode(shared) == "0o755"
    assert mode(cache_dir(load(()))) == mode(tmp_path / ".cache" / "fedgeo") == "0o700"
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FedgeoError, match=r"the cache cannot be written \(File exists\)"):
        cache_dir(load(()))


def test_errors_name_their_file_and_their_cause(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=str(tmp_path)):
        append_line(tmp_path / "none" / "lines", "text")
    assert cause(OSError(28, "No space left on device", "/a/path")) == "No space left on device"
    assert cause(OSError("a library's words")) == "a library's words"
    assert cause(OSError()) == "OSError"


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    (tmp_path / "lines").symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path / 'lines'}'"):
        append_line(tmp_path / "lines", "text")

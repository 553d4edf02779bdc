"""Links in a site's data-path lead nowhere else."""

import os
from pathlib import Path

import pytest

from app.common.errors import FedgeoError
from app.data.links import refuse_links_out
from app.tools.site_check import check_site
from tests.pictures import tree


def linked(tmp_path: Path, name: str) -> Path:
    """A folder of data with a link ``name`` to a file outside, and an honest one beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.png").write_bytes(b"secret")
    data = tmp_path / "data"
    (data / "cat").mkdir(parents=True)
    (data / "cat" / "a.png").write_bytes(b"a")
    (data / "cat" / "b.png").symlink_to("a.png")
    (data / "dog").symlink_to(data / "cat", target_is_directory=True)
    target = tmp_path / "outside"
    (data / name).symlink_to(target if name == "cow" else target / "x.png")
    return data


@pytest.mark.parametrize("name", ["cow", "cat/c.png", "session.edf"])
def test_a_link_out_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    data = linked(tmp_path, name)
    with pytest.raises(FedgeoError, match=rf"^{name}: a link that leads out of data-path"):
        refuse_links_out(data)
    (data / name).unlink()
    refuse_links_out(data)
    (tmp_path / "alias").symlink_to(data)
    refuse_links_out(tmp_path / "alias")


def test_a_site_is_told(tmp_path: Path) -> None:
    data = tree(tmp_path / "data", "cat/a.png", "dog/b.png")
    (tmp_path / "x.png").write_bytes(b"secret")
    (data / "cat" / "link.png").symlink_to(tmp_path / "x.png")
    found = check_site(data, ("experiment=image_folder", "encoder=pixels"))
    assert any(fault.startswith("cat/link.png: a link that leads out") for fault in found.faults)


@pytest.mark.parametrize("named", ["/etc/passwd", "../outside/x.png"])
def test_a_header_that_points_out_is_refused(tmp_path: Path, named: str) -> None:
    data = linked(tmp_path, "cow")
    (data / "cow").unlink()
    header = data / "s1.vhdr"
    header.write_text("[Common Infos]\nDataFile=s1.eeg\nMarkerFile=$b.vmrk\n")
    refuse_links_out(data)
    header.write_text(f"[Common Infos]\nDataFile={named}\n")
    with pytest.raises(FedgeoError, match=r"^s1.vhdr, line 2: DataFile leads out of data-path"):
        refuse_links_out(data)


def test_what_cannot_be_read_to_its_end_is_refused(tmp_path: Path) -> None:
    data = tree(tmp_path / "data", "cat/a.png")
    os.mkfifo(data / "cat" / "pipe.vhdr")
    with pytest.raises(FedgeoError, match=r"^cat/pipe.vhdr: neither a file nor a folder"):
        refuse_links_out(data)
    (data / "cat" / "pipe.vhdr").unlink()
    (data / "cat" / "round.png").symlink_to("round.png")
    with pytest.raises(FedgeoError, match=r"^cat/round.png: a link that leads to itself"):
        refuse_links_out(data)

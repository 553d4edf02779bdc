"""Image files of one colour, alone and in folders."""

from pathlib import Path

from PIL import Image

RED, WHITE = (255, 0, 0), (255, 255, 255)


def write(path: Path, colour: object = RED, size: tuple[int, int] = (4, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def tree(root: Path, *names: str) -> Path:
    for at, name in enumerate(names):
        write(root / name, (at, 0, 0))
    return root

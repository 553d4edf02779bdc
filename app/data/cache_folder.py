"""Where caches lie."""

from pathlib import Path

from ..config.schema import Config


def cache_dir(config: Config) -> Path:
    """Where embeddings and processed trials are cached between runs."""
    return Path(config.cache_dir or Path.home() / ".cache" / "fedgeo").expanduser()

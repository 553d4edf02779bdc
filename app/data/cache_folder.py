"""Where caches lie."""

from pathlib import Path

from ..common.errors import WHERE_CACHES_GO, FedgeoError, cause
from ..common.files import private_folder
from ..config.schema import Config


def cache_dir(config: Config) -> Path:
    """Where embeddings and processed trials are cached between runs; the user's own cache is closed to others.

    Raises FedgeoError where that cannot be made.
    """
    if config.cache_dir is not None:
        return Path(config.cache_dir).expanduser()
    own = Path.home() / ".cache" / "fedgeo"
    try:
        private_folder(own)
    except OSError as fault:
        raise FedgeoError(f"{own}: the cache cannot be written ({cause(fault)}): {WHERE_CACHES_GO}") from fault
    return own

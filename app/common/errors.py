"""The exception type for faults a user can mend: its text is the whole message."""


class FedgeoError(ValueError):
    """A fault in the input, configuration or data, told in one line: what, where, and what is allowed."""


WHERE_CACHES_GO = "set cache_dir (at a site, state-path) to a folder that can be written"  # how such a fault ends

MISSING = "missing: "  # how the text of a Missing begins, by which the server knows it


class Missing(FedgeoError):  # noqa: N818 - it is an answer more than an error
    """A node lacks what a message refers to by its digest: it is to be sent again."""

    def __init__(self, what: str) -> None:
        super().__init__(MISSING + what)


MENDABLE = (FedgeoError, FloatingPointError)  # whose own words are enough: where they were raised tells nothing more


def cause(error: OSError) -> str:
    """Why the system refused, without the path."""
    return error.strerror or str(error) or type(error).__name__


def describe(error: BaseException) -> str:
    """An error in one text: a fault's own words, another error's with its type."""
    if isinstance(error, KeyboardInterrupt):
        return "it was interrupted"
    return str(error) if isinstance(error, FedgeoError) else f"{type(error).__name__}: {error}"

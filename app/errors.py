"""The one exception type for faults a user can mend: its text is the whole message."""


class FedgeoError(ValueError):
    """A fault in the input, configuration or data, told in one line: what, where, and what is allowed."""

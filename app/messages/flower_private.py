"""All of Flower that fedgeo uses beside its public modules (flwr.app, flwr.serverapp, flwr.clientapp), in one place.

A new version of Flower may move any of it without notice: pyproject.toml pins the versions that were tried.
"""

from flwr.common import log
from flwr.common.constant import ErrorCode, SType
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["ErrorCode", "Run", "SType", "identify", "log"]


def identify() -> None:
    """Make this process one in which ``Message`` can be made outside of Flower's own: as the server of run 1."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0

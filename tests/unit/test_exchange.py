"""What is refused of tensors that came over the network."""

import pytest
import torch

from app.algorithms.signature import check_tensors, template
from app.common.errors import FedgeoError

WANTED = template({"w": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.float64)})


def test_tensors_as_agreed_pass() -> None:
    assert check_tensors({"w": torch.ones(2, 3), "b": torch.ones(2).double()}, WANTED, "client 4") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    w = torch.ones(2, 3)
    w[1, 2] = value
    with pytest.raises(FedgeoError, match="client 4: w holds values that are not finite"):
        check_tensors({"w": w, "b": torch.ones(2).double()}, WANTED, "client 4")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"w": torch.ones(2, 3)}, "lacks b; expected w, b"),
        ({"w": torch.ones(2, 3), "b": torch.ones(2).double(), "v": torch.ones(1)}, "has v, which is unknown"),
        ({"w": torch.ones(3, 2), "b": torch.ones(2).double()}, r"w must be float32 \(2, 3\), not float32 \(3, 2\)"),
        ({"w": torch.ones(2, 3), "b": torch.ones(2)}, r"b must be float64 \(2,\), not float32 \(2,\)"),
        ({"w": torch.full((2, 3), 3e37), "b": torch.ones(2).double()}, "w holds values above"),
    ],
)
def test_other_tensors_than_agreed_are_refused(found: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(FedgeoError, match=f"client 4: {message}"):
        check_tensors(found, WANTED, "client 4")


def test_a_frame_that_is_not_orthonormal_is_refused() -> None:
    wanted = template({"stiefel.0": torch.zeros(3, 2)})
    assert check_tensors({"stiefel.0": torch.eye(3)[:, :2]}, wanted, "client 4") is None
    with pytest.raises(FedgeoError, match="client 4: stiefel.0 has no orthonormal columns"):
        check_tensors({"stiefel.0": torch.ones(3, 2)}, wanted, "client 4")

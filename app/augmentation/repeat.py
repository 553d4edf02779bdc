"""The control: as many samples as GGEUR would draw, from the same anchors, without any perturbation."""

from dataclasses import dataclass
from typing import ClassVar

from .ggeur import ShapeAugmentation
from .sources import Filling


@dataclass(frozen=True)
class RepeatAugmentation(ShapeAugmentation):
    """The same messages as GGEUR's; the shapes that are sent are not drawn along."""

    name: ClassVar[str] = "repeat"
    control: ClassVar[bool] = True

    @property
    def filling(self) -> Filling:
        return Filling(self.target, self.absent, step2=self.step2, per_prototype=self.per_prototype, shaped=False)

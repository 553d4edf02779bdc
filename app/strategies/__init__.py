"""Flower strategies: each goes into any ServerApp, around or in the place of Flower's own."""

from .base import FedgeoStrategy
from .ggeur import GGEUR
from .shift import Shift
from .stiefel import ProjAvg, RLAvg

__all__ = ["GGEUR", "FedgeoStrategy", "ProjAvg", "RLAvg", "Shift"]

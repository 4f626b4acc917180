"""Optimizers whose step a parameter server takes."""

from ._parameter_server import ParameterServerOptimizer
from ._row_optimizers import RowAdagrad, RowAdam, RowSGD

__all__ = ["ParameterServerOptimizer", "RowAdagrad", "RowAdam", "RowSGD"]

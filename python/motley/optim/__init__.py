"""Optimizers whose step a parameter server takes."""

from ._parameter_server import ParameterServerOptimizer

__all__ = ["ParameterServerOptimizer"]

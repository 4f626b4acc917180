"""What moves the rows of an embedding that a parameter server has: only those that a batch used, each by its own state.

With g the gradient of a row, of the mean over the samples of all ranks:

    RowSGD        w -= lr g
    RowAdagrad    s += mean(g^2);  w -= lr g / (sqrt(s) + eps)                    one s a row, as torch's fused row-wise Adagrad
    RowAdam       m += (1-b1)(g-m);  v += (1-b2)(g^2-v);  t += 1;  w -= lr / (1-b1^t) m / (sqrt(v / (1-b2^t)) + eps)
"""

from __future__ import annotations

import dataclasses

from .. import _motley
from .._arguments import read_number


@dataclasses.dataclass(frozen=True)
class RowSGD:
    """Plain gradient descent on the rows that a batch used."""

    lr: float = 0.01

    def __post_init__(self) -> None:
        read_number("lr", self.lr)

    def _options(self) -> _motley.RowOptimizer:
        return _motley.RowOptimizer("sgd", self.lr, 1e-8, 0.9, 0.999)


@dataclasses.dataclass(frozen=True)
class RowAdagrad:
    """Adagrad with one sum of squares a row."""

    lr: float = 0.01
    eps: float = 1e-8

    def __post_init__(self) -> None:
        read_number("lr", self.lr)
        read_number("eps", self.eps)

    def _options(self) -> _motley.RowOptimizer:
        return _motley.RowOptimizer("adagrad", self.lr, self.eps, 0.9, 0.999)


@dataclasses.dataclass(frozen=True)
class RowAdam:
    """Adam on the rows that a batch used; each row counts its own steps."""

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        read_number("lr", self.lr)
        read_number("eps", self.eps)
        if (not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2
                or not all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in self.betas)):
            raise ValueError(f"betas are {self.betas!r}; two numbers of at least 0 and below 1 are accepted")

    def _options(self) -> _motley.RowOptimizer:
        return _motley.RowOptimizer("adam", self.lr, self.eps, *self.betas)

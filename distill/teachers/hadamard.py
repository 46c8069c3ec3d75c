"""Hadamard matrices: entries ±1, orthogonal rows. PHI-S uses one to spread variance evenly over channels.

Sylvester's construction doubles a matrix; Paley's two constructions build one of order q + 1 (q prime, q % 4 = 3) or
2 (q + 1) (q % 4 = 1) from the squares modulo q. Together they give all orders up to 1536 that vision models have: 384,
768, 1024, 1152, 1280, 1408, 1536. Some multiples of 4 are missing (52, 92, 100, 116, …); no other order above 2 exists.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def hadamard(order: int) -> NDArray[np.int8] | None:
    """(order, order) with H @ H.T = order * I; None if no construction gives this order."""
    doublings = (order & -order).bit_length() - 1 if order > 0 else -1
    for times in range(doublings, -1, -1):
        seed = _seed(order >> times)
        if seed is not None:
            for _ in range(times):
                seed = np.block([[seed, seed], [seed, -seed]])
            return seed
    return None


def _seed(order: int) -> NDArray[np.int8] | None:
    """The matrix of order 1, or one of Paley's."""
    if order == 1:
        return np.ones((1, 1), dtype=np.int8)
    if order % 4 == 0 and (order - 1) % 4 == 3 and _prime(order - 1):
        return _paley_one(order - 1)
    if order % 4 == 0 and (order // 2 - 1) % 4 == 1 and _prime(order // 2 - 1):
        return _paley_two(order // 2 - 1)
    return None


def _paley_one(q: int) -> NDArray[np.int8]:
    """I + S; S is skew-symmetric, the matrix of residues bordered by ones."""
    skew = np.zeros((q + 1, q + 1), dtype=np.int8)
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = _residues(q)
    return skew + np.eye(q + 1, dtype=np.int8)


def _paley_two(q: int) -> NDArray[np.int8]:
    """The matrix of residues bordered by ones, with ±1 replaced by ±A and the zeros on its diagonal by B."""
    symmetric = np.zeros((q + 1, q + 1), dtype=np.int8)
    symmetric[0, 1:] = symmetric[1:, 0] = 1
    symmetric[1:, 1:] = _residues(q)
    a, b = np.array([[1, 1], [1, -1]], dtype=np.int8), np.array([[1, -1], [-1, -1]], dtype=np.int8)
    return np.kron(symmetric, a) + np.kron(np.eye(q + 1, dtype=np.int8), b)


def _residues(q: int) -> NDArray[np.int8]:
    """(q, q): 1 if column - row is a square modulo q, otherwise -1; 0 on the diagonal."""
    legendre = np.full(q, -1, dtype=np.int8)
    legendre[np.arange(1, q) ** 2 % q] = 1
    legendre[0] = 0
    return legendre[(np.arange(q) - np.arange(q)[:, None]) % q]


def _prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))

"""A shuffle without memory: where each place goes is computed, nothing is stored."""

import numpy as np


def permute(places: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Return where a shuffle of range(size) puts each place; keys (uint64) choose it.

    A Feistel network is one to one on [0, 4^half); places that leave [0, size) walk on until they
    return, which keeps it one to one there (cycle walking, four turns on average at worst).
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    result = _feistel(places.astype(np.uint64), half, mask, keys)
    while (out := result >= np.uint64(size)).any():
        result[out] = _feistel(result[out], half, mask, keys[out])
    return result.astype(np.int64)


def _feistel(values: np.ndarray, half: np.uint64, mask: np.uint64, keys: np.ndarray) -> np.ndarray:
    left, right = values >> half, values & mask
    for turn in range(4):
        left, right = right, left ^ (hash_of(right ^ keys, turn) & mask)
    return (left << half) | right


def hash_of(values: np.ndarray, seed: int) -> np.ndarray:
    """A well mixed uint64 of each (value, seed): splitmix64's finisher over both."""
    return _mix(values ^ _mix(np.array([seed % 2**64], np.uint64)))


def _mix(values: np.ndarray) -> np.ndarray:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

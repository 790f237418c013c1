"""Dropout by numbered draws in Python's own numbers, one element after the other."""

WORDS = 2**32
Key = tuple[int, int]


def _hashed(key: Key, place: int) -> int:
    word = key[0] ^ place % WORDS
    word ^= word >> 16
    word = word * 0x21F0AAAD % WORDS
    word = ((word ^ (word >> 15)) + key[1]) % WORDS
    word ^= word >> 16
    word = word * 0xD35A2D97 % WORDS
    return word ^ (word >> 15)


def pair(words: Key, number: int) -> Key:
    """The key of a dropout or of a row under two words of a step's key."""
    first = _hashed((words[0], 0), number)
    return first, _hashed((first, words[1]), number >> 32)


def joined(dropout: Key, row: Key) -> Key:
    """The key of a row of a dropout."""
    return dropout[0] ^ row[0], dropout[1] + row[1]


def falls(key: Key, place: int, p: float) -> bool:
    """Whether the element at a place falls."""
    second = key[1] + (place >> 32) * 0x1B873593
    return _hashed((key[0], second), place) < round(p * WORDS)

"""Values of a mask by the places of a query and a key, exact for every length of the sequence.

A `Places` is a number made of places: factors of the places along dims, and a constant. A `Chosen`
is one value where all its bounds, each a `Places`, are at least 0, and another value elsewhere.
Dims count from the end, -1 for keys and -2 for queries where both are there. What neither can say
is None.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

Number: TypeAlias = float | bool
QUERIES, KEYS = -2, -1


@dataclass(frozen=True)
class Places:
    """factors: of the place along a dim, by dim, none of them 0."""

    factors: frozenset[tuple[int, int]]
    constant: int = 0

    def plus(self, number: int) -> "Places":
        """Return the number and another."""
        return replace(self, constant=self.constant + number)

    def times(self, number: int) -> "Places":
        """Return the product with a number."""
        factors = frozenset((d, f * number) for d, f in self.factors if f * number)
        return Places(factors, self.constant * number)

    def and_places(self, other: "Places") -> "Places":
        """Return the sum of both."""
        total = dict(self.factors)
        for dim, factor in other.factors:
            total[dim] = total.get(dim, 0) + factor
        factors = frozenset((d, f) for d, f in total.items() if f)
        return Places(factors, self.constant + other.constant)

    def at_first(self, dims: frozenset[int]) -> "Places":
        """Return the number where the places along some dims are 0."""
        return replace(self, factors=frozenset((d, f) for d, f in self.factors if d not in dims))

    def moved(self, to: Callable[[int], int]) -> "Places":
        """Return the number where dims have moved."""
        return replace(self, factors=frozenset((to(d), f) for d, f in self.factors))


@dataclass(frozen=True)
class Chosen:
    """`inside` where all bounds are at least 0, `outside` elsewhere."""

    bounds: frozenset[Places]
    inside: Number
    outside: Number

    def each(self, to: Callable[[Number], Number]) -> "Chosen":
        """Return what a function makes of both values."""
        return replace(self, inside=to(self.inside), outside=to(self.outside))

    def at_first(self, dims: frozenset[int]) -> "Chosen":
        """Return the value where the places along some dims are 0."""
        bounds = frozenset(bound.at_first(dims) for bound in self.bounds)
        fixed = {bound for bound in bounds if not bound.factors}
        if any(bound.constant < 0 for bound in fixed):
            return everywhere(self.outside)
        return replace(self, bounds=bounds - fixed)

    def moved(self, to: Callable[[int], int]) -> "Chosen":
        """Return the value where dims have moved."""
        return replace(self, bounds=frozenset(bound.moved(to) for bound in self.bounds))

    @property
    def constant(self) -> Number | None:
        """Return its one value; None where it has two."""
        alike = not self.bounds or self.inside == self.outside
        return self.inside if alike else None

    def as_all(self, inside: Number) -> "Chosen | None":
        """Return it with `inside` where all bounds hold; None where that takes an `or` of them."""
        if self.inside == inside or not self.bounds:
            return self
        if len(self.bounds) != 1:
            return None
        (bound,) = self.bounds
        return Chosen(frozenset({bound.times(-1).plus(-1)}), self.outside, self.inside)


Shown: TypeAlias = Places | Chosen | None


def everywhere(value: Number) -> Chosen:
    """Return one value at all places."""
    return Chosen(frozenset(), value, value)


def at_least(a: Places, b: Places) -> Chosen:
    """Return where a >= b."""
    return Chosen(frozenset({a.and_places(b.times(-1))}), True, False)


def diagonal(offset: int, lower: bool) -> Places:
    """Return what is at least 0 in the lower, or upper, part of a matrix from a diagonal on, as
    `torch.tril` and `torch.triu` count diagonals."""
    below = Places(frozenset({(QUERIES, 1), (KEYS, -1)}), offset)
    return below if lower else below.times(-1)


def both(a: Chosen, b: Chosen) -> Chosen | None:
    """Return a and b, of bools."""
    if a.constant is not None or b.constant is not None:
        fixed, other = (a, b) if a.constant is not None else (b, a)
        return other if fixed.constant else everywhere(False)
    left, right = a.as_all(True), b.as_all(True)
    if left is None or right is None:
        return None
    return Chosen(left.bounds | right.bounds, True, False)


def negated(a: Chosen) -> Chosen:
    """Return the opposite of a, of bools."""
    return a.each(lambda value: not value)


def either(a: Chosen, b: Chosen) -> Chosen | None:
    """Return a or b, of bools."""
    found = both(negated(a), negated(b))
    return found and negated(found)


def window_of(seen: Chosen) -> int | None:
    """Return how many keys up to its own a query sees, 0 for all of them, of bools; None where it
    sees others."""
    kept = seen.as_all(True)
    if kept is None or kept.outside is not False:
        return None
    causal, near = diagonal(0, lower=True), []
    for bound in kept.bounds - {causal}:
        if bound.factors == causal.times(-1).factors:
            near.append(bound.constant + 1)
        elif bound.factors != causal.factors or bound.constant < 0:
            return None
    sees_itself = causal in kept.bounds and min(near, default=1) > 0
    return min(near, default=0) if sees_itself else None

"""What factor rules are built of: dims shared by shapes, and rules from names."""

from ..graph import Value
from ..sizes import Shape, Size
from .definition import Dims, Rule


def same_dims(shape: Shape) -> tuple[Dims, dict[str, Size]]:
    """One factor a dim, and their sizes."""
    dims = tuple((f"d{k}",) for k in range(len(shape)))
    return dims, {f"d{k}": size for k, size in enumerate(shape)}


def broadcast(shape: Shape, out: Shape) -> Dims:
    """Dims of an operand that is broadcast to `out`.

    Only a size of 1 is broadcast: others are equal, though they may be written in another way.
    """
    offset = len(out) - len(shape)
    return tuple(
        () if size == 1 != out[k + offset] else (f"d{k + offset}",) for k, size in enumerate(shape)
    )


def leading(shape: Shape) -> list[str]:
    """Names of all dims but the last."""
    return [f"b{k}" for k in range(len(shape) - 1)]


def rule_by_names(
    dims_in: list[list[str]],
    dims_out: list[list[str]],
    values: list[Value],
    outputs: tuple[Value, ...],
    reduce: list[dict[str, str]],
    fixed: str = "",
) -> Rule:
    """The rule of an op whose dims are one named factor each, as in an einsum."""
    sizes: dict[str, Size] = {}
    for names, value in zip([*dims_in, *dims_out], [*values, *outputs], strict=True):
        sizes.update(zip(names, value.shape, strict=True))
    return Rule(
        tuple(tuple((n,) for n in names) for names in dims_in),
        tuple(tuple((n,) for n in names) for names in dims_out),
        sizes,
        tuple(reduce),
        frozenset(fixed.split()),
    )


def common_factors(before: Shape, after: Shape) -> tuple[Dims, Dims, dict[str, Size]]:
    """Factors shared by two shapes of one buffer, by walking both from the major dim.

    A pair of dims that neither divides the other becomes one unnamed, whole group.
    """
    left: list[list[str]] = [[] for _ in before]
    right: list[list[str]] = [[] for _ in after]
    sizes: dict[str, Size] = {}
    i = j = 0
    rest_i: Size = before[0] if before else 1
    rest_j: Size = after[0] if after else 1

    def advance(index: int, shape: Shape) -> tuple[int, Size]:
        index += 1
        return index, (shape[index] if index < len(shape) else 1)

    while i < len(before) and j < len(after):
        if rest_i == 1 and rest_j != 1:
            i, rest_i = advance(i, before)
        elif rest_j == 1 and rest_i != 1:
            j, rest_j = advance(j, after)
        elif rest_i == 1 and rest_j == 1:
            i, rest_i = advance(i, before)
            j, rest_j = advance(j, after)
        else:
            size = _common(rest_i, rest_j)
            if size is None:
                return tuple(() for _ in before), tuple(() for _ in after), {}
            name = f"f{len(sizes)}"
            sizes[name] = size
            left[i].append(name)
            right[j].append(name)
            rest_i, rest_j = divided(rest_i, size), divided(rest_j, size)
    return tuple(map(tuple, left)), tuple(map(tuple, right)), sizes


def _common(a: Size, b: Size) -> Size | None:
    """The larger factor both can give up: one of them, when it divides the other; 0 has none."""
    if a == 0 or b == 0:
        return None
    if a == b:
        return a
    if _divides(a, b):
        return a
    return b if _divides(b, a) else None


def _divides(a: Size, b: Size) -> bool:
    """Whether a divides b for all B and S."""
    if isinstance(a, int) and isinstance(b, int):
        return b % a == 0
    quotient = b / a
    return getattr(quotient, "is_integer", False) is True or quotient == _int_or_none(quotient)


def _int_or_none(expr: object) -> int | None:
    return int(expr) if getattr(expr, "is_Integer", False) else None  # type: ignore[call-overload]


def divided(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    quotient = a / b
    return int(quotient) if getattr(quotient, "is_Integer", False) else quotient


def blocks_of(whole: Size, part: Size) -> int | None:
    """Return how many equal parts make the whole, None where that is no number."""
    if whole == part:
        return 1
    if isinstance(whole, int) and isinstance(part, int) and part > 0 and whole % part == 0:
        return whole // part
    return None

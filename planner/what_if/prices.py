"""What devices cost and draw: parts.toml beside this file, and a file of the user's own."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from ..hardware.cluster import ClusterError
from ..headed_toml import read_tables

HEADER = "# meshwright parts v1"
BUILT_IN = Path(__file__).with_name("parts.toml")


@dataclass(frozen=True)
class Part:
    """Figures of one device, None where they are not known.

    price_per_hour: US dollars, rented. watts: at work. peak_flops_per_s: dense bf16.
    """

    price_per_hour: float | None = None
    watts: float | None = None
    peak_flops_per_s: float | None = None


@dataclass(frozen=True)
class Prices:
    """Figures by a part of the device's name; of each figure the first entry that has it counts."""

    parts: tuple[tuple[str, Part], ...]

    def of(self, device: str) -> Part:
        """Return the figures of a device by its name."""
        fitting = [part for key, part in self.parts if key in device]

        def first(figure: str) -> float | None:
            said = (getattr(part, figure) for part in fitting)
            return next((value for value in said if value is not None), None)

        return Part(**{item.name: first(item.name) for item in fields(Part)})


def read_prices(own: Path | None = None) -> Prices:
    """Read the figures. own: a file whose entries come first, and overrule what they name. Raises
    ClusterError with the file and the entry at fault."""
    entries = [*(_read(own).items() if own else ()), *_read(BUILT_IN).items()]
    return Prices(tuple((name, Part(**said)) for name, said in entries))


def _read(path: Path) -> dict[str, dict[str, float]]:
    tables = read_tables(path, HEADER, "--prices")
    return {name: _part(path, name, table) for name, table in tables.items()}


def _part(path: Path, name: str, table: object) -> dict[str, float]:
    if not isinstance(table, Mapping):
        raise ClusterError(f"--prices {path}: {name} = {table!r}; write [{name}] and its figures")
    known = [item.name for item in fields(Part)]
    found = {key: value for key, value in table.items() if key != "sources"}
    for key, value in found.items():
        where = f"--prices {path}: [{name}] {key}"
        if key not in known:
            raise ClusterError(f"{where}: unknown; give {', '.join(known)}, or sources")
        if not _is_positive(value):
            raise ClusterError(f"{where} is {value!r}; give a number above 0")
    return found


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0

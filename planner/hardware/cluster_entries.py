"""Entries of a cluster file: which there are, and the form of each."""

from collections.abc import Callable

from .cluster import ClusterError

# The entries of each table of a file.
ENTRIES = {
    "": "name devices_per_node nodes host_link_bytes_per_s host_memory_bytes overlap_price device"
    " levels sources",
    "device.": "name type hbm_bytes_per_s memory_bytes launch_us call_us efficiency context_bytes"
    " communicator_bytes tile_depth clock_gain attention_flops_per_s attention_readings"
    " matmul_flops_per_s sources",
    "levels.": "name alpha_us bytes_per_s span by_nodes hop_us full_mesh curves sources",
    "levels.curves.": "collective group bytes us",
}
UNSEEN = "context_bytes", "communicator_bytes"
OF_MATMULS = {"tile_depth": 5000, "clock_gain": 1}  # the largest value of each
COUNTS = "devices_per_node nodes host_memory_bytes memory_bytes span full_mesh group".split()
COUNTS += UNSEEN
_RATES = "device.matmul_flops_per_s."  # its entries are named by element type
_NUMBERS = "host_link_bytes_per_s overlap_price hbm_bytes_per_s launch_us call_us efficiency"
_NUMBERS += " alpha_us bytes_per_s tile_depth clock_gain"
_LARGEST = 10**300  # of a whole number, that a float holds
_SHOWN = 40  # letters of a value


def check_entries(table: dict, where: str, inside: str = "") -> None:
    """Raise ClusterError for an entry that no file has, or one of another form."""
    known = ENTRIES.get(inside, "").split()
    for key, value in table.items():
        if known and key not in known:
            raise ClusterError(
                f"{where}: {inside}{key} is no entry of a cluster; give {', '.join(known)}"
            )
        if isinstance(value, bool):
            raise ClusterError(f"{where}: {inside}{key} is {str(value).lower()}; give a number")
        if known or inside == _RATES:
            _check_form(key if known else "rate", value, f"{where}: {inside}{key}")
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                check_entries(part, where, f"{inside}{key}.")


def _check_form(key: str, value: object, where: str) -> None:
    has_form, wanted = _FORMS.get(key, _ANY)
    if not has_form(value):
        raise ClusterError(f"{where} has the wrong form: {_short(value)}; {wanted}")
    if key in COUNTS and isinstance(value, float) and not value.is_integer():
        raise ClusterError(f"{where} is {value}; give a whole number")


def _short(value: object) -> str:
    text = f"'{value}'" if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < _LARGEST)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_table, value))


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _are_two(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and _are_numbers(value)


def _are_pairs(value: object) -> bool:
    return isinstance(value, list) and all(map(_are_two, value))


def _are_readings(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_reading, value))


def _is_reading(row: object) -> bool:
    """Return whether a row is of four numbers, with the name of a kernel behind them or without."""
    named = isinstance(row, list) and len(row) == 5 and isinstance(row[4], str)
    return isinstance(row, list) and (len(row) == 4 or named) and _are_numbers(row[:4])


# By entry whether a value has its form, and what to give where it has not.
_Form = tuple[Callable[[object], bool], str]
_ANY: _Form = (lambda _: True, "")
_NUMBER: _Form = (_is_number, "give a number")
_FORMS: dict[str, _Form] = dict.fromkeys([*COUNTS, *_NUMBERS.split(), "rate"], _NUMBER) | {
    "device": (_is_table, "give a table [device]"),
    "sources": (_is_table, "give a table of texts by entry"),
    "matmul_flops_per_s": (_is_table, "give rates by element type, such as bf16 = 675e12"),
    "levels": (_are_tables, "give tables [[levels]], the innermost link first"),
    "curves": (_are_tables, "give tables [[levels.curves]]"),
    "attention_flops_per_s": (_are_two, "give [forward, backward]"),
    "attention_readings": (
        _are_readings,
        "give rows [head size, positions, forward, backward], with the backend's name behind them "
        "where it is not the vendor's",
    ),
    "by_nodes": (_are_pairs, "give pairs [nodes, share]"),
    "bytes": (_are_numbers, "give a list of numbers"),
    "us": (_are_numbers, "give a list of numbers"),
}

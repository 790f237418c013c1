"""Requests that no endpoint should obey, sent to a live run, for faults.py."""

import json
import random
import socket
from pathlib import Path

from meshwright.runtime.control.address import Address, read_address

KINDS = ("endpoint: malformed requests", "endpoint: wrong tokens")
COUNT = 500


def bombard(kind: str, run: Path, rng: random.Random) -> int:
    """Send COUNT requests to the run; return how many were not refused."""
    address = read_address(run)
    if address is None:
        return COUNT
    make = _malformed if kind.endswith("requests") else _unauthorised
    return sum(_obeyed(address, make(address, rng)) for _ in range(COUNT))


def _obeyed(address: Address, data: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", address.port), timeout=10) as stream:
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
            return b" 200 " in stream.recv(4096).partition(b"\r\n")[0]
    except OSError:
        return False


def _post(token: str, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"POST /command HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {size}\r\n"
    return head.encode() + b"\r\n" + body


def _unauthorised(address: Address, rng: random.Random) -> bytes:
    """A command that would end the run, under a token that differs in one character, or is cut."""
    token, at = address.token, rng.randrange(len(address.token))
    wrong = token[:at] + ("a" if token[at] != "a" else "b") + token[at + 1 :]
    return _post(rng.choice((wrong, token[:at], "", token.swapcase())), b'{"do": "abort"}')


def _malformed(address: Address, rng: random.Random) -> bytes:
    """Noise; or, with the right token, no JSON, an unknown command, another type or length."""
    bodies = (
        rng.randbytes(rng.randrange(200)),
        b"[" * 5000,
        b'{"do": "abort"',
        json.dumps({"do": rng.choice(("aborts", 7, None, ["stop"]))}).encode(),
        json.dumps({"do": "set", "values": {rng.choice(("lr", "seed")): "x"}}).encode(),
        b'{"do": "profile", "steps": 1000000000000}',
    )
    return rng.choice(
        (
            rng.randbytes(rng.randrange(1, 3000)),
            _post(address.token, rng.choice(bodies)),
            _post(address.token, b'{"do": "abort"}', length=rng.choice((-1, 3, 10**9))),
        )
    )

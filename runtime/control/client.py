"""Requests to the endpoint of a live run, from the machine that it runs on."""

import http.client
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .address import Address, read_address
from .commands import Command, CommandError
from .endpoint import LOOPBACK

_LIMIT_S = 30.0


def address_in(out: Path) -> Address:
    """Return the address of the live run in a folder. Raises CommandError where there is none."""
    address = read_address(out)
    if address is None:
        raise CommandError(
            f"{out} holds no live run: it has no control.json, which a run writes when its first "
            "step begins, and removes at its end"
        )
    return address


def status_of(address: Address) -> dict[str, Any]:
    """Return what a live run tells of itself."""
    return json.loads(_request(address, "GET", "/status"))


def metrics_of(address: Address) -> str:
    """Return the metrics of a live run, as Prometheus reads them."""
    return _request(address, "GET", "/metrics")


def send(address: Address, command: Command) -> None:
    """Hand a command to a live run, which carries it out within a step."""
    _request(address, "POST", "/command", json.dumps(asdict(command)))


def _request(address: Address, method: str, path: str, body: str = "") -> str:
    """Return the body of a reply. Raises CommandError for a refusal, or where nobody answers."""
    connection = http.client.HTTPConnection(LOOPBACK, address.port, timeout=_LIMIT_S)
    try:
        connection.request(
            method, path, body.encode(), {"Authorization": f"Bearer {address.token}"}
        )
        reply = connection.getresponse()
        text = reply.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(
            f"the run's endpoint on {address.host}, port {address.port}, does not answer "
            f"({error}); the run may have ended"
        ) from None
    finally:
        connection.close()
    if reply.status != 200:
        said = json.loads(text).get("error", text) if text.startswith("{") else text
        raise CommandError(f"refused ({reply.status}): {said}")
    return text

"""The endpoint of a live run: HTTP on loopback, in a thread of rank 0.

A request shows the token in `Authorization: Bearer TOKEN`; without it nothing is read or told.
GET /status and /metrics tell, POST /command takes one command as JSON.
"""

import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .commands import Command, CommandError, parse_command

LOOPBACK = "127.0.0.1"
# The longest command; for how long a client may be silent, and how long it may take; how many are
# heard at a time, and how long one more waits for its turn.
MOST_BYTES, SILENT_S, LONGEST_S, AT_ONCE, TURN_S = 1 << 14, 5.0, 10.0, 16, 1.0

Reply = tuple[int, str, str]  # status, content type, text


class Endpoint:
    """A server that runs until it is closed.

    status: gives what /status tells. metrics: gives the text of /metrics. take: takes a command,
    and raises CommandError for one that cannot be carried out; it is called in a thread of the
    server's.
    """

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        metrics: Callable[[], str],
        take: Callable[[Command], None],
    ) -> None:
        self.status, self.metrics, self.take = status, metrics, take
        self.token = secrets.token_urlsafe(32)
        self._server = _Server((LOOPBACK, 0), _handler(self))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.25,), daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def may(self, shown: str) -> bool:
        """Tell whether a request shows the token; the time taken tells nothing of it."""
        wanted = f"Bearer {self.token}".encode()
        return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), wanted)

    def reply(self, method: str, path: str, body: str) -> Reply:
        """Return the reply to a request that may be made."""
        if (method, path) == ("GET", "/status"):
            return _json(200, self.status())
        if (method, path) == ("GET", "/metrics"):
            return 200, "text/plain; version=0.0.4; charset=utf-8", self.metrics()
        if (method, path) == ("POST", "/command"):
            try:
                command = parse_command(body)
                self.take(command)
            except ValueError as error:
                return _json(400, {"error": str(error)})
            return _json(200, {"taken": command.do})
        return _json(404, {"error": f"no {method} {path[:40]}"})


def _json(status: int, data: dict[str, Any]) -> Reply:
    return status, "application/json", json.dumps(data) + "\n"


class _Server(ThreadingHTTPServer):
    """A server of at most AT_ONCE threads, which end with the process, and which says nothing of
    broken requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hear a client in a thread of its own, or leave it where there is no room."""
        if not self._room.acquire(timeout=TURN_S):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._room.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Hear a client to its end, or until it took too long."""
        cut = threading.Timer(LONGEST_S, _cut, (request,))
        cut.daemon = True
        try:
            cut.start()
            super().process_request_thread(request, client_address)
        finally:
            cut.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a request that cannot be read: the run goes on, and its log is not a stranger's."""


def _cut(stream: socket.socket) -> None:
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)


def _handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One request a connection."""

        server_version, sys_version = "meshwright", ""
        timeout = SILENT_S

        def handle(self) -> None:
            self.handle_one_request()

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            if not endpoint.may(self.headers.get("Authorization") or ""):
                return self._send(_json(401, {"error": "the token is missing or wrong"}))
            length = self.headers.get("Content-Length") or "0"
            if not length.isdecimal() or len(length) > 6 or int(length) > MOST_BYTES:
                return self._send(_json(413, {"error": f"more than {MOST_BYTES} bytes"}))
            body = self.rfile.read(int(length)).decode("utf-8", "replace")
            self._send(endpoint.reply(self.command, self.path, body))

        def _send(self, reply: Reply) -> None:
            status, kind, text = reply
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Keep requests out of the run's log."""

    return Handler


__all__ = ["CommandError", "Endpoint"]

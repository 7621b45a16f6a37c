"""A web server for one live page: read-only, on the loopback address unless another one is asked for."""

from __future__ import annotations

import errno
import ipaddress
import json
import socket
from functools import cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from expertp.errors import InputError
from expertp.report.live import Follower, View
from expertp.report.pages import fill

# Like the policy of a report, but scripts come from the server only, which also answers the script's questions.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SCRIPTS = ("script.js", "live.js")
# Errors of a port: it is in use, or reserved. All others are those of an address.
PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)
# Seconds after which a silent connection is closed, and between two questions of a page at most.
SILENT_SECONDS, LONGEST_WAIT = 60, 15.0


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address or a name.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class LiveServer(ThreadingHTTPServer):
    """Serves what a follower sees. Make it with `make_server`."""

    daemon_threads = True

    def __init__(self, follower: Follower, host: str, port: int) -> None:
        self.follower, self.host = follower, host.strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((self.host, port), partial(_Handler, protects_loopback=is_loopback(host)))

    @property
    def address(self) -> str:
        """The page's address in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has closed its connection."""


def make_server(follower: Follower, host: str = "127.0.0.1", port: int = 0) -> LiveServer:
    """Return a server that listens at an address; a port of 0 is any free one."""
    try:
        return LiveServer(follower, host, port)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"cannot serve at {host}, port {port}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Say whether the address or the port is wrong, and what to do."""
    if isinstance(error, OverflowError) or (isinstance(error, OSError) and error.errno in PORT_ERRORS):
        return f"{getattr(error, 'strerror', 'no such port')}; choose another --port, 0 for any"
    return f"{getattr(error, 'strerror', 'no such name')}; give --host an address or a name of this machine"


class _Handler(BaseHTTPRequestHandler):
    """Answers GET: the page, its state, one part, the script."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = SILENT_SECONDS

    def __init__(self, *arguments: Any, protects_loopback: bool) -> None:
        self.protects_loopback = protects_loopback
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer a request."""
        # A page of another site may have its name point to this machine; its requests carry that name.
        if self.protects_loopback and not is_loopback(_host_of(self.headers.get("Host", ""))):
            self._send("this server answers to localhost only", "text/plain", HTTPStatus.FORBIDDEN)
            return
        path = self.path.partition("?")[0]
        if path == "/script.js":
            self._send(script(), "text/javascript")
            return
        view = self.server.follower.view()
        if path == "/":
            self._send(page_of(view), "text/html")
        elif path == "/state":
            self._send(state_of(view, self.server.follower.pause), "application/json")
        else:
            found = [part.html for part in view.parts if path == f"/part/{part.anchor}"]
            status = HTTPStatus.OK if found else HTTPStatus.NOT_FOUND
            self._send(found[0] if found else "nothing here", "text/html" if found else "text/plain", status)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: a page asks every few seconds."""

    def _send(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = text.encode(errors="replace")
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def page_of(view: View) -> str:
    """Return the whole page."""
    return fill("live.html", page=view, policy=POLICY)


def state_of(view: View, pause: float) -> str:
    """Return what the page's script asks for: the versions of all parts, and when to ask again.

    Args:
        view: what the page shows.
        pause: seconds between two looks; a page asks more often after long ones, so that it is not a look behind.
    """
    return json.dumps(
        {
            "title": view.title,
            "is_provisional": view.is_provisional,
            "parts": [[part.anchor, part.version] for part in view.parts],
            "wait": round(1000 * min(pause, LONGEST_WAIT)),
        }
    )


@cache
def script() -> str:
    """Return the page's script."""
    return "\n".join(files("expertp.report").joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)


def _host_of(header: str) -> str:
    """Return the name in a Host header, without its port.

    >>> _host_of("localhost:8765"), _host_of("[::1]:80")
    ('localhost', '[::1]')
    """
    name, colon, port = header.rpartition(":")
    return name if colon and port.isdigit() else header

"""The socket that a server listens on. No torch: a port that is taken is told before a run is loaded."""

from __future__ import annotations

import socket

from etude.errors import UserError

BACKLOG = 2048  # connections that wait to be accepted


def check_port(host: str, port: int) -> None:
    """Raise UserError where a server could not listen on this port."""
    bind_port(host, port).close()


def bind_port(host: str, port: int) -> socket.socket:
    """Return a socket that listens; UserError where the port cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as problem:
        raise UserError(f"Port {port} of {host} cannot be had ({problem}): name another with --port.") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError as problem:
        bound.close()
        raise UserError(f"Port {port} of {host} cannot be had ({problem}): name another with --port.") from None
    return bound

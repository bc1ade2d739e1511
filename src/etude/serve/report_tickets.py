"""Tickets: a link carries no token, so each report is opened by a signed word that holds for a minute."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from etude.serve.problems import Problem

TICKET_SECONDS = 60


class ReportTickets:
    """Makes and checks tickets; their secret ends with the process."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def make(self, path: str) -> str:
        """A word that opens one report for a minute."""
        expiry = str(int(time.time()) + TICKET_SECONDS)
        return f"{expiry}.{self._sign(path, expiry)}"

    def check(self, path: str, ticket: str) -> None:
        """Raise 401 where a ticket is not ours, for another report, or too old."""
        expiry, _, signature = ticket.partition(".")
        right = hmac.compare_digest(signature.encode(), self._sign(path, expiry).encode())
        if not right or not expiry.isdecimal() or int(expiry) < time.time():
            raise Problem(401, "This link is over: open the report from the board.", {"WWW-Authenticate": "Bearer"})

    def _sign(self, path: str, expiry: str) -> str:
        return hmac.new(self._secret, f"{expiry}\n{path}".encode(), hashlib.sha256).hexdigest()

"""When a server needs a bearer token, and what one is. Loads nothing: a server without one is refused at once."""

from __future__ import annotations

from ipaddress import ip_address

from etude.errors import UserError

MIN_TOKEN = 16  # letters of a token


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Raise UserError where other machines could connect without a token, or the token cannot be used."""
    make = "python -c 'import secrets; print(secrets.token_urlsafe(24))' makes one."
    if token is None and not is_loopback(host):
        raise UserError(
            f"On {host} other machines can connect, so requests need a token: set ETUDE_TOKEN, or --token-file. {make}"
        )
    if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
        raise UserError(f"A token has {MIN_TOKEN} letters or more, ASCII and without spaces. {make}")

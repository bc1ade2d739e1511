"""A port that is taken is told at once, before minutes are spent on loading runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.serve.ports import check_port
from etude.verbs.serving import serve


def test_a_port_in_use_is_told_before_runs_are_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} of 127.0.0.1 cannot be had .* name another with --port"):
            serve([tmp_path / "never-opened"], port=port)


def test_a_checked_port_is_free_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    check_port("127.0.0.1", port)
    socket.create_server(("127.0.0.1", port)).close()

"""Whether the machines of a run reach each other, and not only the store.

Where the network between two machines is cut, both may still tell the store that they live, and their collectives wait
for minutes. So the first process of each machine asks those of all others for a connection every few seconds, on a port
that is bound and not listened on: the kernel refuses at once, and a refusal is an answer, whatever the process does.
Only what has answered before is missed, since a firewall may let nothing but the ports of collectives through.

What is asked is the network of the store. A fabric of its own (InfiniBand) is not seen.
"""

from __future__ import annotations

import errno
import ipaddress
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack

PROBE_INTERVAL = 5.0  # seconds between two questions to a machine
PATIENCE = 3.0  # seconds in which it answers
ANSWERS = (0, errno.ECONNREFUSED)


class Reach:
    """The port of this machine, and when the ports of others last answered."""

    def __init__(self, store_host: str) -> None:
        family, _, _, _, place = socket.getaddrinfo(store_host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as route:  # sends nothing: the kernel says which way it would go
            route.connect(place)
            own = str(route.getsockname()[0])
        self.bound = socket.socket(family, socket.SOCK_STREAM)
        self.bound.bind(("", 0))
        # the machine of the store may know itself by a loopback address, which means another machine elsewhere
        host = store_host if ipaddress.ip_address(own.partition("%")[0]).is_loopback else own
        self.address = f"{host} {self.bound.getsockname()[1]}"
        self.peers: dict[int, tuple[str, int]] = {}
        self.answered: dict[int, float] = {}

    def set_peers(self, addresses: Mapping[int, str]) -> None:
        """Name the addresses of other machines by the ranks of their first processes."""
        pairs = {rank: address.rpartition(" ") for rank, address in addresses.items() if address}
        self.peers = {rank: (host, int(port)) for rank, (host, _, port) in pairs.items()}

    def probe(self) -> dict[int, float]:
        """Ask all machines; return the seconds since each answered, of those that ever did and now do not."""
        missing, until = set(self.peers), time.monotonic() + PATIENCE
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            for rank, place in self.peers.items():
                link = stack.enter_context(socket.socket(self.bound.family, socket.SOCK_STREAM))
                link.setblocking(False)
                try:
                    code = link.connect_ex(place)
                except OSError:  # a name that is not known at the moment
                    continue
                if code in ANSWERS:
                    missing.discard(rank)
                elif code == errno.EINPROGRESS:
                    selector.register(link, selectors.EVENT_WRITE, rank)
            while selector.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    link = key.fileobj  # type: ignore[assignment]
                    if link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in ANSWERS:
                        missing.discard(key.data)
                    selector.unregister(link)
        now = time.monotonic()
        self.answered |= dict.fromkeys(set(self.peers) - missing, now)
        return {rank: now - self.answered[rank] for rank in sorted(missing) if rank in self.answered}

    def close(self) -> None:
        self.bound.close()

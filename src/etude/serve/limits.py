"""What one server accepts: sizes, queue, seconds. Each limit has an answer of HTTP where it is passed."""

from __future__ import annotations

from dataclasses import dataclass

MAX_INPUTS = 1024  # of one request
MAX_TEXTS = 64  # texts generated or translated by one request
MAX_TEMPERATURE = 100.0  # all tokens are alike long before; at 1e300 scores are no numbers
MAX_NEW_TOKENS = 1024  # generated after one text


@dataclass(frozen=True)
class Limits:
    """Limits of a server; the defaults suit small models on a shared machine."""

    body_bytes: int = 2**20  # of one request; 413
    buffered_bytes: int = 2**26  # of all requests that are being received; 503
    tokens: int = 65_536  # of the inputs of one request; 413
    queue: int = 512  # requests that wait or are being answered; 429
    batch_requests: int = 64  # answered in one forward pass; 1: every request alone
    workers: int = 1  # forward passes at once; more than one only on a CPU
    forked: bool = False  # whether each of them runs in a process of its own: loaded runs on the CPU of a Linux machine
    batch_characters: int = 32_768  # the same, by the length of the inputs: bounds how long a pass takes
    wait: float = 0.002  # seconds a request waits for others that are just arriving
    timeout: float = 30.0  # seconds until an answer must be there; 503
    read_timeout: float = 10.0  # seconds until a request must have arrived; 408
    grace: float = 10.0  # seconds to finish accepted requests after SIGTERM; 503 then
    connections: int = 1024  # at once; 503
    generated_texts: int = 64  # written at once by one model; others wait

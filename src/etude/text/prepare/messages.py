"""Messages between processes: a JSON head and raw arrays behind it. No pickle, nothing to execute."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

SIZES = struct.Struct("<IQ")  # bytes of the head, bytes of all arrays

Message = tuple[dict[str, Any], dict[str, np.ndarray]]


def send(file: IO[bytes], head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    described = {name: [array.dtype.str, len(array)] for name, array in arrays.items()}
    text = json.dumps({"head": head, "arrays": described}).encode()
    file.write(SIZES.pack(len(text), sum(array.nbytes for array in arrays.values())))
    file.write(text)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).data)
    file.flush()


def receive(file: IO[bytes]) -> Message | None:
    """The next message, or None when the other side is gone."""
    sizes = file.read(SIZES.size)
    if len(sizes) < SIZES.size:
        return None
    head_size, body_size = SIZES.unpack(sizes)
    text, body = file.read(head_size), file.read(body_size)
    if len(text) < head_size or len(body) < body_size:
        return None
    message = json.loads(text)
    arrays, place = {}, 0
    for name, (dtype, count) in message["arrays"].items():
        kind = np.dtype(dtype)
        arrays[name] = np.frombuffer(body, kind, count, place)
        place += kind.itemsize * count
    return message["head"], arrays


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)

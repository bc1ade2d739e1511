"""Messages between processes: a JSON head with raw arrays behind it. No pickle, nothing to execute."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

SIZES = struct.Struct("<IQ")  # bytes of the head, bytes of all arrays

Head = dict[str, Any]  # JSON, whose fields depend on the task of the message
Arrays = dict[str, np.ndarray]
Message = tuple[Head, Arrays]


def send(file: IO[bytes], head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write one message."""
    descriptions = {name: [array.dtype.str, len(array)] for name, array in arrays.items()}
    text = json.dumps({"head": head, "arrays": descriptions}).encode()
    file.write(SIZES.pack(len(text), sum(array.nbytes for array in arrays.values())))
    file.write(text)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).data)
    file.flush()


def receive(file: IO[bytes]) -> Message | None:
    """Read the next message; None when the other side is gone."""
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
        array_dtype = np.dtype(dtype)
        arrays[name] = np.frombuffer(body, array_dtype, count, place)
        place += array_dtype.itemsize * count
    return message["head"], arrays


def bytes_to_array(data: bytes) -> np.ndarray:
    """Return bytes as an array of uint8, without a copy."""
    return np.frombuffer(data, np.uint8)

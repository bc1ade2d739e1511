"""Unicode normalization of every text before it is encoded."""

from __future__ import annotations

import unicodedata


def normalize_nfc(text: str) -> str:
    """Compose characters (NFC), so that Hangul typed as jamo and as syllables is the same text."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)

"""Where the real data of development lie: beside the checkout; tests that need them skip where they are not."""

from pathlib import Path

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"

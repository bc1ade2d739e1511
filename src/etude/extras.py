"""Optional dependencies: a missing package is one message, with the command that installs it.

Every use of one calls `require` first. The packages stand under `[project.optional-dependencies]` in pyproject.toml;
docs/dependencies.md says what each is for.
"""

from __future__ import annotations

import importlib.util

from etude.errors import UserError

# package -> the extra that installs it
EXTRAS = {
    "pyarrow": "parquet",
    "tensorboard": "tensorboard",
    "datasets": "hub",
    "huggingface_hub": "hub",
    "h5py": "elmo",
    "numba": "fast",
    "ray": "ray",
    "fsspec": "remote",
    "s3fs": "remote",
    "aiohttp": "remote",
    "gcsfs": "gcs",
    "sacrebleu": "translation",
    "fastapi": "serve",
    "starlette": "serve",
    "h11": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
}


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    return importlib.util.find_spec(package) is not None


def install_command(package: str) -> str:
    """How to install a package of EXTRAS: "pip install 'etude[parquet]'"."""
    return f"pip install 'etude[{EXTRAS[package]}]'"


def require(package: str, purpose: str, alternative: str = "") -> None:
    """Raise UserError "PURPOSE needs PACKAGE: pip install 'etude[EXTRA]'[, or ALTERNATIVE]." unless it is installed.

    A plain `import` follows at the call site, so that type checkers and readers see what is used.
    """
    if not is_installed(package):
        ending = f", or {alternative}" if alternative else ""
        raise UserError(f"{purpose} needs {package}: {install_command(package)}{ending}.")

"""A process where Triton interprets: it runs the files of tests it is asked for, each in a fork of its own.

    python -m tests.interpreter     each line of the input is the path of a file; exit code, length and output follow

Triton must know before it is imported whether it interprets, so such tests need another process than pytest's; torch
and Triton are imported once in it, which takes longer than most of the tests.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import subprocess
import sys
import tempfile
from types import ModuleType
from typing import IO, Any

INTERPRETED = "interpreted and not slow and not gpu"  # what else is in the files has run without the interpreter


class Interpreter:
    """The process, seen from the one that asks; started at the first question."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, path: str) -> tuple[int, str]:
        """Run the interpreted tests of a file; return pytest's exit code and output."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.interpreter"]
            environment = os.environ | {"TRITON_INTERPRET": "1"}
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None and answers is not None
        print(path, file=questions, flush=True)
        header = answers.readline()
        assert header, "the process that interprets Triton's kernels has died"
        code, length = map(int, header.split())
        return code, answers.read(length)

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


# imported once: what the files of tests and their fixtures need, and what torch and Triton import at a first call
SHARED = (
    "torch", "torch._dynamo", "triton", "triton.runtime.interpreter", "hypothesis.strategies",
    "etude.inference.model", "tests.transfer_fixtures",
)  # fmt: skip


def serve() -> None:
    import pytest

    for name in SHARED:
        importlib.import_module(name)
    interpreter = importlib.import_module("triton.runtime.interpreter")
    if hasattr(interpreter, "_LangPatchScope"):  # Tritons without it patch in another way: the tests only take longer
        patch_once_a_kernel(interpreter)
    if hasattr(interpreter, "_get_np_dtype") and hasattr(interpreter, "interpreter_builder"):  # likewise
        compute_types_once(interpreter)
    gc.freeze()  # else each fork looks through all that was imported here when pytest collects garbage at its end
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if not child:
                os._exit(run_tests(pytest.main, line.strip(), output))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            text = output.read()
        print(code, len(text), flush=True)
        print(text, end="", flush=True)


def patch_once_a_kernel(interpreter: ModuleType) -> None:
    """Let kernels call functions without patching `triton.language` again, which took most of the time of small ones.

    The interpreter replaces the builtins of that module while a kernel runs, and once more at each function that the
    kernel calls, where they are replaced already unless the function sees other modules of Triton than those before.
    """
    patch = interpreter._patch_lang
    seen: set[frozenset[str]] = set()  # modules of Triton that the running kernel and its functions see
    running = False

    class Scope(interpreter._LangPatchScope):  # type: ignore[misc, name-defined]
        """What a kernel has replaced: put back at its end."""

        def __init__(self, inner: Any) -> None:
            self._changes = inner._changes

        def restore(self) -> None:
            nonlocal running
            super().restore()
            seen.clear()
            running = False

    def patch_unless_seen(function: Any) -> Any:
        nonlocal running
        names = frozenset(
            value.__name__ for value in function.__globals__.values()
            if isinstance(value, ModuleType) and value.__name__.startswith("triton.")
        )  # fmt: skip
        if not running:
            running = True
            seen.add(names)
            return Scope(patch(function))
        if names not in seen:
            patch(function)
            seen.add(names)
        return None  # the interpreter puts back what a kernel has replaced, not what a function has

    interpreter._patch_lang = patch_unless_seen


def compute_types_once(interpreter: ModuleType) -> None:
    """Let the interpreter compute what it asks of types once a type, and nothing that it throws away.

    Most of its time went into sizes, names and NumPy's equals of the same few types at each operation, and into checks
    of integers for overflow whose result counts only in its debug mode: outside of it they are never looked at.
    """
    core, builder, dtype_of = interpreter.tl.core, interpreter.interpreter_builder, interpreter._get_np_dtype
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    dtypes: dict[str, Any] = {}  # by the name of a type, which says all of it
    blocks: dict[tuple[object, ...], dict[str, Any]] = {}
    shapes: dict[str, tuple[Any, Any]] = {}
    init_block, init_tensor = core.block_type.__init__, core.tensor.__init__

    def find_dtype(kind: Any) -> Any:
        if kind.name not in dtypes:
            dtypes[kind.name] = dtype_of(kind)
        return dtypes[kind.name]

    def be_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(size.value if isinstance(size, core.constexpr) else size for size in shape))
        if key not in blocks:
            init_block(self, element_ty, shape)
            blocks[key] = dict(self.__dict__)
        self.__dict__.update(blocks[key], element_ty=element_ty)

    def be_tensor(self: Any, handle: Any, type: Any) -> None:
        if type.name not in shapes:
            init_tensor(self, handle, type)
            shapes[type.name] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[type.name]

    interpreter._get_np_dtype, core.block_type.__init__, core.tensor.__init__ = find_dtype, be_block, be_tensor


def run_tests(main: object, path: str, output: IO[str]) -> int:
    """Run a file by pytest, with all that it prints in `output`."""
    assert callable(main)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    return int(main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "-m", INTERPRETED, path]))


if __name__ == "__main__":
    serve()

"""Compile Python sources to bytecode; run by the image's own Python, in the sandbox.

    python3 inside.py JOBS FLAGS

Reads /build/names (final absolute paths, each ended by a NUL) and /build/src/0,
/build/src/1, ... (the sources, in that order); leaves /build/out/N with the bytecode of
source N, or /build/out/N.error with why there is none.

Every file is compiled in a fresh fork of this process. All forks begin alike, so the bytes
cannot depend on what was compiled before: marshal marks an object as shared if anything in
the process refers to it (strings that are interned are excepted since Python 3.11 only).
And a source that crashes the compiler takes nothing else with it.

This file imports nothing but what Python has, and nothing that it need not.
"""

import importlib.util
import marshal
import os
import sys


def compile_one(number: int, path: bytes, flags: int) -> None:
    """Write the bytecode of one source (PEP 552: magic, flags, hash of the source, code)."""
    with open(f"/build/src/{number}", "rb") as file:  # noqa: PTH123 - see above
        source = file.read()
    try:
        code = compile(source, path.decode(), "exec", dont_inherit=True)
        data = marshal.dumps(code)
    except Exception as error:
        name, data = f"{number}.error", describe(error).encode("utf-8", "backslashreplace")
    else:
        head = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little")
        name, data = str(number), head + importlib.util.source_hash(source) + data
    with open(f"/build/out/{name}", "wb") as file:  # noqa: PTH123
        file.write(data)


def describe(error: Exception) -> str:
    """One line: type, line of the source, message."""
    line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}{line}: {text}"


def main(jobs: int, flags: int) -> None:
    """Compile everything, `jobs` files at a time."""
    with open("/build/names", "rb") as file:  # noqa: PTH123
        paths = file.read().split(b"\0")[:-1]
    running = 0
    for number, path in enumerate(paths):
        if running == jobs:
            os.wait()
            running -= 1
        if os.fork() == 0:
            try:
                compile_one(number, path, flags)
            finally:
                os._exit(0)
        running += 1
    for _ in range(running):
        os.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""Compile Python sources to bytecode; run by the image's own Python, in the sandbox.

    python3 inside.py JOBS FLAGS

Reads /build/names (final absolute paths, each ended by a NUL) and /build/src/0,
/build/src/1, ... (the sources, in that order); leaves /build/out/N with the bytecode of
source N, or /build/out/N.error with why there is none.

Sources are compiled in batches, each in a fresh fork of this process. All forks begin
alike and a batch is a fixed stretch of the list, so the bytes cannot depend on how many run
at once: marshal marks an object as shared if anything in the process refers to it. A source
that crashes the compiler ends its batch; the rest of it is then compiled one by one, and
nothing but that source is lost.

This file imports nothing but what Python has, and nothing that it need not.
"""

import importlib.util
import marshal
import os
import sys

BATCH = 64  # a fork costs as much as compiling three sources


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


def run(batches: "list[range]", paths: "list[bytes]", jobs: int, flags: int) -> None:
    """Compile batches of sources, `jobs` at a time."""
    running = 0
    for batch in batches:
        if running == jobs:
            os.wait()
            running -= 1
        if os.fork() == 0:
            try:
                for number in batch:
                    compile_one(number, paths[number], flags)
            finally:
                os._exit(0)
        running += 1
    for _ in range(running):
        os.wait()


def main(jobs: int, flags: int) -> None:
    """Compile everything, `jobs` batches at a time."""
    with open("/build/names", "rb") as file:  # noqa: PTH123
        paths = file.read().split(b"\0")[:-1]
    starts = range(0, len(paths), BATCH)
    run([range(at, min(at + BATCH, len(paths))) for at in starts], paths, jobs, flags)
    done = set(os.listdir("/build/out"))
    left = [n for n in range(len(paths)) if not done & {str(n), f"{n}.error"}]
    run([range(n, n + 1) for n in left], paths, jobs, flags)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

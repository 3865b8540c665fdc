"""Processes of a benchmark that differ in their environment, and run when they are told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator


class Worker:
    """A process that runs ``file --worker arguments``, which ends in :func:`serve`.

    Args:
        file: the benchmark.
        arguments: of the process.
        environment: variables that it has beside those of this process.
    """

    def __init__(self, file: str, *arguments: object, **environment: str) -> None:
        command = [sys.executable, file, "--worker", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self.answer()

    def answer(self) -> dict:
        """The next line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self.process.wait()}")
        return json.loads(line)

    def run(self, *numbers: int) -> None:
        """Has the process run once."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{' '.join(map(str, numbers))}\n")
        self.process.stdin.flush()
        self.answer()

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def serve(about: dict, run: Callable[..., None]) -> None:
    """In the process: prints what it is about, and then runs with the numbers of each line that it reads."""
    print(json.dumps(about), flush=True)
    for numbers in _lines():
        run(*numbers)
        print("{}", flush=True)


def _lines() -> Iterator[list[int]]:
    for line in sys.stdin:
        yield [int(number) for number in line.split()]

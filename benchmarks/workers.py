"""Processes of a benchmark that differ in what they run or in their environment, and run when they are told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence


class Worker:
    """A process that first says what it is about, and then answers each line of its input, both by a line of JSON.
    Starting it does not wait for it, so that several processes start at the same time.

    Args:
        command: of the process.
        environment: variables that it has beside those of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, env=os.environ | (environment or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._about: dict | None = None

    @property
    def about(self) -> dict:
        """What the process says first."""
        return self._started()

    def ask(self, *words: object) -> dict:
        """The answer to a line of these words."""
        assert self.process.stdin is not None
        self._started()
        self.process.stdin.write(f"{' '.join(map(str, words))}\n")
        self.process.stdin.flush()
        return self._line()

    def _started(self) -> dict:
        """Waits for what the process says first; returns it."""
        if self._about is None:
            self._about = self._line()
        return self._about

    def _line(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def itself(file: str, *arguments: object, **environment: str) -> Worker:
    """A process that runs ``file --worker arguments``, which ends in :func:`serve`, with other variables."""
    return Worker([sys.executable, file, "--worker", *map(str, arguments)], environment)


def serve(about: dict, run: Callable[..., None]) -> None:
    """In the process: prints what it is about, and then runs with the numbers of each line that it reads."""
    print(json.dumps(about), flush=True)
    for numbers in _lines():
        run(*numbers)
        print("{}", flush=True)


def _lines() -> Iterator[list[int]]:
    for line in sys.stdin:
        yield [int(number) for number in line.split()]

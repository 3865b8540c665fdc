"""Which ranks are alive, through the store of torch.distributed: each rank announces itself with a value, then answers
the question whether it is alive until its process ends; and what the end of a program closes."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NoAnswer
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import distributed as dist

from .._private import default_store
from .exchange import OneThread, keep_for_ever

AT_EXIT = 5.0
"""Seconds for which a rank waits for other ranks when its program ends, or when an error has left the context of its
part. They may be in a loop that this rank has left, or wait for it in another call."""


class _Closed(Protocol):
    def close(self, timeout: float | None) -> None: ...


_open: weakref.WeakKeyDictionary[_Closed, None] = weakref.WeakKeyDictionary()


def close_at_exit(entry: _Closed) -> None:
    """Has the end of the program call ``entry.close(AT_EXIT)``, if it is still there; those registered last first."""
    _open[entry] = None


@atexit.register
def _close_all() -> None:
    for entry in reversed(list(_open)):
        entry.close(AT_EXIT)


# Liveness #############################################################################################################

T = TypeVar("T")
ANSWER = 2.5
"""Seconds that a rank which is alive may take to answer, once it has seen the question."""
_EVERY = 0.5
"""The least number of seconds between two looks of a rank for a question."""
REQUESTS = 100
"""How many requests per second the store gets at most from all ranks that look for questions."""
_numbers = itertools.count()
_asking: weakref.WeakKeyDictionary[threading.Thread, float] = weakref.WeakKeyDictionary()
"""Threads that may be in a call that other ranks do not answer, and for how long the end of the program waits."""
_answering: weakref.WeakKeyDictionary[threading.Thread, threading.Event] = weakref.WeakKeyDictionary()
"""Threads that answer other ranks, and what ends them."""


class Liveness:
    """This rank's announcement to the others, and its answers to them. All ranks make their objects in the same order.

    A thread with its own connection to the store answers when another rank asks which ranks are alive, even while this
    process computes. It looks every max(0.5, world / 100) seconds, one request each.

    Args:
        rank, world: of torch.distributed.
        timeout: seconds to wait for the announcements of all ranks.
    """

    _deaf = False  # whether the store has not answered
    _doubt: tuple[float, Future[tuple[int, list[int]]]] | None = None
    """When the ranks were asked ahead; the number of the question before, and who did not answer."""

    def __init__(self, rank: int, world: int, timeout: float) -> None:
        self.rank, self.world, self._timeout = rank, world, timeout
        self._every = max(_EVERY, world / REQUESTS)
        self._within = ANSWER + self._every
        run = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
        connection: Any = default_store()
        self._store = dist.PrefixStore(f"gnnscale/{run}/{next(_numbers)}", connection.clone())
        self._answers = [f"answer/{other}" for other in range(world)]
        self._answer = _Answer(self._store, self._answers[rank])
        self._ended = threading.Event()
        # The thread keeps no reference to this object, with which it ends.
        serve = (self._answer, self._ended, self._every)
        self._thread = threading.Thread(target=_serve, args=serve, name="gnnscale-liveness", daemon=True)
        weakref.finalize(self, self._ended.set)

    def come(self, value: Any) -> list[Any]:
        """Announces this rank with ``value``, which JSON takes; returns the values of all ranks, when all are there.

        Raises:
            RuntimeError: ranks were not announced within the timeout, or within seconds after one of them has ended;
                the message names them.
        """
        keys = [f"said/{other}" for other in range(self.world)]
        ended, asking = _Ended(self.world, self._timeout), self._thread_for("asking")
        until, pause, why = time.monotonic() + self._timeout, 0.005, ""

        def asked(call: Callable[..., T], *given: Any) -> T:
            return asking.submit(call, *given).result(max(0.0, until - time.monotonic()) + self._within)

        try:
            asked(self._store.set, self._answers[self.rank], "0")
            asked(self._store.set, keys[self.rank], json.dumps(value))
            self._thread.start()
            _answering[self._thread] = self._ended
            while not asked(self._store.check, keys):
                if not why and (why := ended.found()):
                    until = time.monotonic() + self._within  # the others are announced until then
                if time.monotonic() > until:
                    missing = [other for other, key in enumerate(keys) if not asked(self._store.check, [key])]
                    self._raise_missing(missing, why)
                time.sleep(pause)
                pause = min(2 * pause, _EVERY)
            return [json.loads(said) for said in asked(self._store.multi_get, keys)]
        except BaseException as error:
            ended.give_up()
            if isinstance(error, (dist.DistError, NoAnswer)):
                self._deaf = True
                raise RuntimeError(f"{_keeper()} is gone or does not answer: {error}") from error
            raise
        finally:
            asking.shutdown(wait=False)

    def _raise_missing(self, ranks: list[int], why: str) -> None:
        """Raises if ranks are missing; ``why``: the error by which one of them is known to have ended, or ""."""
        names, they = ", ".join(map(str, ranks)), "it" if len(ranks) == 1 else "one of them"
        if ranks and why:
            raise RuntimeError(f"rank {names}: expected it to open its part, found that {they} has ended: {why}")
        if ranks:
            raise RuntimeError(
                f"rank {names}: expected it to come within {self._timeout:g} seconds, found that it is missing"
            )

    def together(self, make: Callable[[], T]) -> T:
        """Calls ``make()``, which returns only if all ranks call it, on another thread; returns its result.

        Raises:
            RuntimeError: a rank has ended in the meantime; the message names it.
        """
        thread = self._thread_for("together")
        made = thread.submit(make)
        try:
            while not wait([made], self._within).done:
                if gone := self.gone():
                    raise RuntimeError(gone)
            try:
                return made.result()
            except RuntimeError as error:
                if gone := self.gone():
                    raise RuntimeError(f"{gone}: {error}") from error
                raise
        finally:
            thread.shutdown(wait=False)

    def gone(self) -> str:
        """A text that names the ranks that do not answer, "" if all do. Called after a collective has failed, when all
        ranks have been announced."""
        silent = self._late() or self._silent()
        if silent is None:
            return f"{_keeper()} is gone or does not answer"
        if not silent:
            return ""
        self._store.set("silent", json.dumps(silent))
        return f"rank {', '.join(map(str, silent))} is gone or does not answer"

    def waiting(self, seconds: float) -> None:
        """Called again and again by a thread that waits for the other ranks in a collective, for ``seconds`` so far. If
        the timeout is near, the ranks are asked now, so that :meth:`gone` names them at the timeout."""
        now, lead = time.monotonic(), 2 * self._within + _EVERY
        if seconds < self._timeout - lead or (self._doubt is not None and now - self._doubt[0] < 2 * lead):
            return
        asking = self._thread_for("asking")
        self._doubt = now, asking.submit(lambda: (self._store.add("asked", 0), self._ask() and self._ask()))
        asking.shutdown(wait=False)

    def _late(self) -> list[int] | None:
        """The ranks that did not answer when they were asked ahead, nor since; None if the store did not."""
        if not (doubted := self._doubted()) or not doubted[1]:
            return doubted and []
        return self._asked(lambda: self._ask(1 + doubted[0]))

    def _doubted(self) -> tuple[int, list[int]] | None:
        """The number of the question before the ranks were asked ahead, and those that did not answer; None if the
        store did not."""
        if self._doubt is None:
            return 0, []
        began, found = self._doubt
        left = began + 2 * self._within + 2 * _EVERY - time.monotonic()
        if left < -2 * self._within:  # of an earlier collective
            return 0, []
        try:
            return found.result(max(0.0, left))
        except Exception:  # as in _asked
            return None

    def say(self, text: str, about: int, waited_for: str = "") -> None:
        """Leaves a text for the other ranks: why this one failed, or "" if it failed because of another one. A later
        text about the same topic replaces an earlier one. ``waited_for``: what it waited for the others in."""

        def leave() -> None:
            if waited_for:
                self._store.set(f"waited/{about}/{self.rank}", waited_for)
            self._store.set(f"text/{about}/{self.rank}", text)

        self._asked(leave)

    def waited(self, about: int) -> dict[int, str]:
        """What ranks have said that they waited for, by rank."""

        def ask() -> dict[int, str]:
            keys = {rank: f"waited/{about}/{rank}" for rank in range(self.world)}
            return {rank: self._store.get(key).decode() for rank, key in keys.items() if self._store.check([key])}

        return self._asked(ask) or {}

    def heard(self, about: int) -> dict[int, str]:
        """The texts that ranks have left about a topic, or about everything (topic 0), by rank; none if the store does
        not answer."""
        return self._asked(lambda: self._texts(about)) or {}

    def _texts(self, about: int) -> dict[int, str]:
        found: dict[int, str] = {}
        for rank in range(self.world):
            for topic in {about, 0}:
                if self._store.check([key := f"text/{topic}/{rank}"]):
                    found[rank] = found.get(rank) or self._store.get(key).decode()
        return found

    def conclude(self, text: str, about: int) -> None:
        """Leaves a text for a rank that comes later: why the ranks that waited for it have given up a topic."""
        self._asked(lambda: self._store.set(f"concluded/{about}", text))

    def concluded(self, about: int) -> str:
        """The text that was left by :meth:`conclude`; "" if there is none."""
        key = f"concluded/{about}"
        return self._asked(lambda: self._store.get(key).decode() if self._store.check([key]) else "") or ""

    def _silent(self) -> list[int] | None:
        """The ranks that do not answer; None if the store does not."""
        silent = self._asked(self._ask)
        return silent and self._asked(self._ask)  # asked twice: a rank on a busy machine may answer late

    def _asked(self, ask: Callable[[], T]) -> T | None:
        """What the store says, asked by another thread; None if it does not answer, or has not answered before."""
        if self._deaf or self._doubted() is None:
            self._deaf = True
            return None
        asking = self._thread_for("asking")
        try:
            return asking.submit(ask).result(2 * self._within)
        except Exception:  # also a timeout: a call of a store whose process has ended may take minutes to fail
            self._deaf = True
            return None
        finally:
            asking.shutdown(wait=False)

    def _ask(self, number: int = 0) -> list[int]:
        """The ranks that have answered neither a question nor a later one: that of this ``number``, as it is now, or a
        new one, for which they have some seconds."""
        until = time.monotonic() + (0.0 if number else self._within)
        number = number or self._store.add("asked", 1)
        while True:
            if self._store.check(["silent"]):  # found by another rank, which may itself have ended since
                return json.loads(self._store.get("silent"))
            self._answer.give()
            silent = [rank for rank, found in enumerate(self._store.multi_get(self._answers)) if int(found) < number]
            if not silent or time.monotonic() > until:
                return silent
            time.sleep(self._every / 2)

    def _thread_for(self, what: str) -> OneThread:
        thread = OneThread(f"gnnscale-{what}")
        _asking[thread.thread] = 0.0 if self.rank == 0 and not _torchrun_keeps() else AT_EXIT
        return thread

    def close(self) -> None:
        """Stops answering."""
        self._ended.set()
        if self._thread.is_alive() and not self._deaf:  # else it may wait for the store
            self._thread.join(ANSWER)


class _Ended:
    """Finds out whether a rank has ended, which may not be announced yet. All ranks begin an all-to-all over the
    default group before they are announced, and it fails if a rank ends. Without Gloo as that group's backend on the
    CPU, nothing is found.

    Args:
        world: of the default group.
        timeout: seconds to wait for all ranks.
    """

    def __init__(self, world: int, timeout: float) -> None:
        self._work: Any = None
        if "cpu:gloo" in dist.get_backend_config().split(","):
            options = dist.AllToAllOptions()
            options.timeout = timedelta(seconds=2 * timeout)  # a timeout that ran out would break the group
            sent, received = torch.zeros(2, world).unbind()
            group: Any = dist.group.WORLD
            self._work = group.alltoall_base(received, sent, [], [], options)

    def found(self) -> str:
        """The error of the all-to-all; "" if it has not failed."""
        if self._work is None or not self._work.is_completed():
            return ""
        try:
            self._work.wait()
        except RuntimeError as error:
            return str(error)
        return ""

    def give_up(self) -> None:
        """Called if ranks may be missing: the end of this process does not wait for them."""
        if self._work is not None and not self._work.is_completed():
            keep_for_ever((self._work, dist.group.WORLD))


class _Answer:
    """A rank's answer to the question that was asked last, under ``key`` of the store; threads may give it at once."""

    def __init__(self, store: dist.Store, key: str) -> None:
        self._store, self._key = store, key
        self._given = 0
        self._lock = threading.Lock()

    def give(self) -> None:
        """Answers, unless the last question is answered."""
        with self._lock:
            asked = self._store.add("asked", 0)
            if asked > self._given:
                self._given = asked
                self._store.set(self._key, str(asked))


def _serve(answer: _Answer, ended: threading.Event, every: float) -> None:
    try:
        while not ended.wait(every):
            answer.give()
    except RuntimeError:  # the store ended with its process
        pass


@atexit.register
def _end_threads() -> None:
    """Waits for threads that answer or ask other ranks, because a thread that comes back from native code while the
    interpreter ends aborts the process. Rank 0 often ends for the same reason as this process. If it keeps the store,
    it does not wait for threads that ask: the store ends with it, and the calls of the other ranks fail."""
    for ended in _answering.values():
        ended.set()
    begin = time.monotonic()
    for thread, seconds in [*((thread, ANSWER) for thread in _answering), *_asking.items()]:
        thread.join(max(0.0, begin + seconds - time.monotonic()))


def _torchrun_keeps() -> bool:
    """Whether the process that started the ranks keeps their store, not rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _keeper() -> str:
    if _torchrun_keeps():
        return "torchrun of the first machine, which keeps the store of the ranks,"
    return "rank 0, which keeps the store of the ranks,"

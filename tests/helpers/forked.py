"""New processes that need not import torch and PyG, which takes seconds: forks of one that has done so."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess

from torch.distributed import TCPStore

FORKED = multiprocessing.get_context("forkserver")
"""Forks of a process that has imported nothing of this package: its library reads the environment when it is loaded."""
FORKED.set_forkserver_preload(["torch_geometric", "pytest", "hypothesis", "tqdm"])


ELSEWHERE = "import ctypes; assert ctypes.CDLL(None).unshare(0x50000000) == 0  # CLONE_NEWUSER | CLONE_NEWNET\n"
"""The line by which a program enters a network namespace of its own."""

_PROGRAM = """
import os, runpy, sys
folder, *sys.argv = sys.argv[1:]
os.chdir(folder)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _main(code: str, arguments: tuple[str, ...], environment: dict[str, str], *streams: Connection) -> None:
    """``python -c code arguments`` in a fork, and the end of an interpreter: functions of atexit are called and modules
    destroyed."""
    gc.freeze()  # at its end, an interpreter would look for garbage among all that was imported, for more than a second
    for number, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    ctypes.pythonapi.Py_Exit(status)


def start(code: str, *arguments: str, out: int, err: int, **environment: str) -> ForkServerProcess:
    """A process that runs ``code``, with these files or terminals as its stdout and stderr."""
    streams = [Connection(os.dup(file)) for file in (out, err)]  # a file that multiprocessing passes on
    process = FORKED.Process(target=_main, args=(code, arguments, {**os.environ, **environment}, *streams))
    process.start()
    for stream in streams:
        stream.close()
    return process


def run(code: str, *arguments: str, timeout: float = 120.0, **environment: str) -> CompletedProcess:
    """Runs ``code`` with variables of the environment that the package or its library reads when it is imported."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(code, *arguments, out=out.fileno(), err=err.fileno(), **environment)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError("a process does not end")
        out.seek(0)
        err.seek(0)
        return CompletedProcess(["-c", *arguments], process.exitcode, out.read(), err.read())


def run_ranks(world: int, code: str, *arguments: str, **environment: str) -> list[CompletedProcess]:
    """Runs ``code`` in processes that have, of torch's threads, one each, and the environment that a launcher gives."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun keeps it
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "GLOO_SOCKET_IFNAME": "lo"}
    where |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    of_all = {**where, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), **environment}
    code = f"import torch; torch.set_num_threads(1)\n{code}"
    with ThreadPoolExecutor(world) as pool:
        started = [pool.submit(run, code, *arguments, **of_all, RANK=str(k), LOCAL_RANK=str(k)) for k in range(world)]
        return [process.result() for process in started]


def run_file(path: Path, *arguments: str, folder: Path, timeout: float = 600.0, **environment: str) -> CompletedProcess:
    """Runs a program in a folder, as ``python path arguments`` does."""
    return run(_PROGRAM, str(folder), str(path), *arguments, timeout=timeout, **environment)

"""Crafted directories, each used in forks of one process."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from helpers.crafted import FRIENDLY, craft
from helpers.crafted_uses import PARTS, STORES, use_parts, use_stores, write_parts, write_stores
from torch import distributed as dist

MOST_BYTES = 8 << 30
"""What a process may take: as much as a wrong number says is an error."""


def _rank(path: Path, seed: int, rank: int, world: int, port: Connection, log: Path) -> None:
    """The program of a rank, in a fork; its exit code is 1 for an error that is not :data:`FRIENDLY`."""
    code = 0
    try:
        with log.open("a", buffering=1) as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
        if world > 1:
            limit = timedelta(seconds=20)
            if rank == 0:
                store = dist.TCPStore("127.0.0.1", 0, world, True, limit, wait_for_workers=False)
                port.send(store.port)
            else:
                store = dist.TCPStore("127.0.0.1", port.recv(), world, False, limit)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        (use_parts if path.name in PARTS else use_stores)(path, random.Random(seed))
    except FRIENDLY as found:
        print(f"{type(found).__name__}: {found}")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def tried(whole: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Crafts a directory and uses it, one of parts on as many ranks as there are; each is a fork of this process.

    Args:
        whole: what :func:`write_parts` and :func:`write_stores` wrote.
        folder: an empty one.
        seed: of all choices.

    Returns:
        What was changed, the exit codes of ranks (None: one that did not end) and what they wrote.
    """
    chance = random.Random(seed)
    kind = chance.choice([*PARTS, *STORES])
    world, path = PARTS.get(kind, 1), folder / kind
    shutil.copytree(whole / kind, path)
    changed = f"{kind}: {craft(path, chance)}"
    receiver, sender = Pipe(False)
    logs, pids = [folder / f"log-{rank}" for rank in range(world)], []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            _rank(path, seed, rank, world, receiver if rank else sender, logs[rank])
        pids.append(pid)
    receiver.close()
    sender.close()
    codes, until = [], time.monotonic() + 60
    for pid in pids:
        while not (found := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < until:
            time.sleep(0.005)
        if found[0]:
            codes.append(os.waitstatus_to_exitcode(found[1]))
            continue
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        codes.append(None)
    return {"seed": seed, "changed": changed, "codes": codes, "logs": [log.read_text() for log in logs]}


def main(first: str, count: str) -> None:
    """Prints, as JSON, the cases with the seeds ``first``, ``first`` + 1, ..., of which a rank crashed or hung."""
    torch.set_num_threads(1)  # threads do not live on in forks
    found = []
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        if (pid := os.fork()) == 0:
            write_parts(whole)
            write_stores(whole)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        for seed in range(int(first), int(first) + int(count)):
            case = Path(folder) / str(seed)
            case.mkdir()
            result = tried(whole, case, seed)
            shutil.rmtree(case)
            if any(code != 0 for code in result["codes"]) or os.environ.get("GNNSCALE_CRAFTED") == "all":
                found.append(result)
    print(json.dumps(found))

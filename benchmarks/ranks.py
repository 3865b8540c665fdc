"""Processes of one machine that train together, over its loopback device."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import web_graph
from torch import Tensor, multiprocessing
from torch import distributed as dist
from tqdm import tqdm

from torch_gnnscale.datasets import load, planted

DATA = Path(os.environ.get("GNNSCALE_DATA", Path(__file__).parents[2] / "shared" / "data"))
FLAG = "--rank-folder"
"""First argument of a script that runs as the ranks' parent: followed by the folder and the number of ranks."""


def start(script: str, folder: Path, world: int, seconds: int) -> list[Any]:
    """Runs the ranks of a script; returns what each of them returned.

    Args:
        script: its main calls :func:`is_parent` first.
        folder: what the ranks share.
        world: how many there are.
        seconds: after which they are ended.

    Raises:
        subprocess.CalledProcessError: a rank failed, or the time is over.
    """
    command = ["timeout", str(seconds), sys.executable, script, FLAG, str(folder), str(world)]
    given = {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env={**os.environ, **given})
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


def is_parent(rank_main: Callable[[Path], Any]) -> bool:
    """Whether this process is the parent of ranks: then it has run ``rank_main(folder)`` in each of them."""
    if sys.argv[1:2] != [FLAG]:
        return False
    folder, world = sys.argv[2], int(sys.argv[3])
    (Path(folder) / "store").unlink(missing_ok=True)
    # As forks they need not import anything again; this process has no threads yet.
    multiprocessing.start_processes(_rank, (world, folder, rank_main), nprocs=world, start_method="fork")
    return True


def _rank(rank: int, world: int, folder: str, rank_main: Callable[[Path], Any]) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found = rank_main(Path(folder))
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def race(candidates: Mapping[str, Callable[[int], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each candidate by round, on the slowest rank. All ranks call it together, with the same candidates.

    Each round runs all candidates in an order of its own, after one untimed round; each is called with the number of
    the round. Rank 0 shows a progress bar.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    bar = tqdm(total=(rounds + 1) * len(candidates), unit="run", leave=False, disable=dist.get_rank() > 0 or None)
    for round_ in range(-1, rounds):
        for name, run in random.Random(round_).sample(list(candidates.items()), len(candidates)):
            dist.barrier()
            begin = time.perf_counter()
            run(round_ + 1)
            took = torch.tensor(time.perf_counter() - begin)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if round_ >= 0:
                times[name].append(float(took))
            bar.update()
    bar.close()
    return times


# Graphs ###############################################################################################################


def graph_of(name: str) -> tuple[Tensor, int]:
    """The edges and the number of nodes: ``planted``, ``small``, ``cnr2000`` or ``Oklahoma97``.

    Raises:
        FileNotFoundError: its file is not in GNNSCALE_DATA, or ../shared/data.
    """
    if name == "cnr2000":
        web = web_graph()
        if web is None:
            raise FileNotFoundError(f"{DATA}: expected cnr2000, found none")
        return web
    makers = {
        "planted": planted, "small": partial(planted, num_nodes=5000),
        "Oklahoma97": lambda: load("fb100/Oklahoma97", DATA).data,
    }  # fmt: skip
    data = makers[name]()
    return data.edge_index, int(data.num_nodes)

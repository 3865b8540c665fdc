"""Directories of parts as nobody means them: one thing is wrong, and all checksums are right."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.hetero import CITES, PAPER, WRITES, make_hetero
from helpers.parts import HERE, homogeneous
from torch import Tensor
from torch import distributed as dist

from torch_gnnscale import LayerSampler, LinkNeighborLoader, NeighborLoader, files, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.partition import directory

FRIENDLY = (ValueError, TypeError, IndexError, NotImplementedError, OSError, MemoryError, RuntimeError)
"""What may be raised for a directory that is wrong."""
KINDS = {"one": 1, "two": 2, "edges": 2, "typed one": 1, "typed two": 2}
"""Directories by name, with their number of parts; those of "edges" have a partitioned topology."""
ROWS = ("x", "edge_attr")
"""Attributes whose rows are compared with those of the files."""
NUMBERS = [
    -1,
    0,
    1,
    2,
    7,
    100,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31),
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
]


def write_all(path: Path) -> None:
    """Writes one directory of each of :data:`KINDS`."""
    data = homogeneous(60)
    data.weight = torch.arange(data.num_edges) % 7 / 2
    for name, parts in KINDS.items():
        if name.startswith("typed"):
            given = {"splits": {"train": (PAPER, torch.arange(0, 40, 2))}}
            typed = make_hetero()
            links = {
                "train": (WRITES, typed[WRITES].edge_index[:, ::9]),
                "val": (CITES, typed[CITES].edge_index[:, :9]),
            }
            partition.write(typed, path / name, parts, method="random", links=links, **given)
            continue
        topology = "partitioned" if name == "edges" else "replicated"
        partition.write(
            data, path / name, parts, method="random", topology=topology, links={"train": data.edge_index[:, ::40]},
            graph_attrs=["time"] if name == "edges" else ["time", "weight"],
        )  # fmt: skip


# Crafting ############################################################################################################


def seal(folder: Path, manifest: dict[str, Any] | None = None) -> None:
    """Makes the checksum of a manifest that of its content."""
    manifest = json.loads((folder / files.MANIFEST).read_text()) if manifest is None else manifest
    manifest["crc32"] = files._checksum(manifest)
    (folder / files.MANIFEST).write_text(json.dumps(manifest))


def put(folder: Path, name: str, array: Tensor | None) -> None:
    """Replaces an array, and its entry in the manifest; None: both go."""
    manifest = json.loads((folder / files.MANIFEST).read_text())
    del manifest["arrays"][name]
    (folder / f"{name}.npy").unlink()
    if array is not None:
        with files.ArrayWriter(folder / f"{name}.npy", array.dtype, tuple(array.shape)) as writer:
            writer.append(array)
        manifest["arrays"][name] = writer.entry
    seal(folder, manifest)


def seal_all(path: Path) -> None:
    """Makes all of a directory agree: folders with the book, parts and the mark of completion with its fingerprint."""

    def crc(folder: Path) -> int:
        return json.loads((folder / files.MANIFEST).read_text())["crc32"]

    with suppress(KeyError, TypeError, AttributeError, OSError):  # of manifests that are not as they were
        book = json.loads((path / "book" / files.MANIFEST).read_text())
        for name in book["meta"]["folders"]:
            book["meta"]["folders"][name] = crc(path / name)
        seal(path / "book", book)
        fingerprint, parts = directory.fingerprint_of_parts(path), []
        for folder in sorted(path.glob("part-*")):
            manifest = json.loads((folder / files.MANIFEST).read_text())
            manifest["meta"]["fingerprint"] = fingerprint
            seal(folder, manifest)
            parts.append(crc(folder))
        mark = json.loads((path / "complete" / files.MANIFEST).read_text())
        mark["meta"] |= {"fingerprint": fingerprint, "parts": parts}
        seal(path / "complete", mark)


def changed_array(array: Tensor, chance: random.Random) -> Tensor | None:
    """An array with other entries, another length, shape or dtype."""
    how = chance.randrange(12)
    if how < 6 and array.numel():
        flat = array.reshape(-1).clone()
        for _ in range(chance.choice([1, 1, 1, 3, 20])):
            value = chance.choice([*NUMBERS, int(array.numel()), len(array)])
            at = chance.choice([0, -1, chance.randrange(len(flat)), slice(None)])
            with suppress(RuntimeError, OverflowError):  # a number that the dtype has not
                flat[at] = bool(value) if flat.dtype == torch.bool else value
        return flat.view(array.shape)
    if how < 8 and array.dim():
        count = chance.choice([0, 1, len(array) // 2, max(len(array) - 1, 0)])
        return array[:count].clone() if chance.random() < 0.7 else torch.cat([array, array[:count]])
    if how == 8:
        return array.to(chance.choice([torch.int32, torch.int64, torch.float64, torch.uint8, torch.bool, torch.int16]))
    if how == 9:
        return chance.choice([array.unsqueeze(0), array.unsqueeze(-1), array.reshape(-1), array.reshape(-1)[:1].sum()])
    if how == 10:
        return array.flip(0) if array.dim() else array.reshape(1)
    return None


VALUES = [
    None,
    True,
    -1,
    0,
    1,
    1 << 62,
    1.5,
    "x",
    "int32",
    "float64",
    [],
    [1],
    [[0, 0]],
    {},
    "partitioned",
    "replicated",
]


def changed_meta(value: Any, chance: random.Random) -> Any:
    """Plain values in which one entry is another, or is gone."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if chance.random() < 0.25:
            del value[key]
        else:
            value[key] = changed_meta(value[key], chance)
        return value
    if isinstance(value, int) and chance.random() < 0.6:
        return value + chance.choice([-1, 1, 1000])
    return chance.choice(VALUES)


def craft(path: Path, chance: random.Random) -> str:
    """Changes a directory of parts in one place; returns what was changed."""
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    folder = chance.choice(folders)
    names = sorted(file.stem for file in folder.glob("*.npy"))
    if names and chance.random() < 0.75:
        name = chance.choice(names)
        with suppress(AttributeError):
            array = files.map_array(
                folder / f"{name}.npy", json.loads((folder / files.MANIFEST).read_text())["arrays"][name]
            )
            put(folder, name, changed_array(array.clone(), chance))
        seal_all(path)
        return f"{folder.name}/{name}"
    manifest = json.loads((folder / files.MANIFEST).read_text())
    if folder.name != "complete":
        manifest["meta"] = changed_meta(manifest["meta"], chance)
        seal(folder, manifest)
        seal_all(path)
    else:
        manifest["meta"] = changed_meta(manifest["meta"], chance)
        seal(folder, manifest)
    return f"{folder.name}/{files.MANIFEST}"


def rows_in(file: Path) -> set[bytes]:
    """The rows of an array of a directory, which may be damaged."""
    with suppress(*FRIENDLY, EOFError):
        return {row.tobytes() for row in np.load(file)}
    return set()


# Use #################################################################################################################


def use(path: Path, chance: random.Random) -> None:
    """What a rank of a training run does with its part; the same on all ranks, whose ``chance`` is the same."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    typed, edges = path.name.startswith("typed"), path.name == "edges"
    options: dict[str, Any] = {"verify": chance.random() < 0.5, "timeout": 20.0}
    if world > 1:
        options |= chance.choice([{}, {"buffer": 0.5}, {"buffer": "1MiB", "policy": "static"}, HERE])
    if not typed:
        options["tiers"] = chance.choice([None, None, {}, {"host": "30%"}])
    mode, of = chance.randrange(5), chance.choice(["part", "all"])
    stored = {row for file in path.glob("part-*/rows_*.npy") for row in rows_in(file)}
    with open_part(path, **options) as part:
        order = {"seed_order": "owned" if of == "part" else "global"} if world > 1 else {}
        given: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, **order}
        stores = (part.features, part.graph)
        with suppress(ValueError):
            str(part.parts.report), part.stats()
        if mode == 0 and not edges:
            links = part.links("train", of=of)
            loader = LinkNeighborLoader(stores, [3, 2], edge_label_index=links, neg_sampling="binary", **given)
        elif mode == 1 and not typed:
            sampler = LayerSampler(stores, [9, 9], chance.choice(["ladies", "fastgcn", "labor"]))
            loader = NeighborLoader(stores, None, part.input_nodes("train", of=of), neighbor_sampler=sampler, **given)
        else:
            more = chance.choice([{}, {"weight_attr": "weight"}, {"time_attr": "time"}]) if not typed else {}
            loader = NeighborLoader(stores, [3, -1], part.input_nodes("train", of=of), **more, **given)
        for _ in range(2):
            for batch in loader:
                for name in ROWS:
                    for rows in batch.collect(name, allow_empty=True).values() if typed else [batch[name]]:
                        assert {row.tobytes() for row in rows.numpy()} <= stored, f"{name}: rows of no file"


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
        use(path, random.Random(seed))
    except FRIENDLY as found:
        print(f"{type(found).__name__}: {found}")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def tried(whole: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Crafts a directory and uses it, on as many ranks as it has parts; each is a fork of this process.

    Args:
        whole: what :func:`write_all` wrote.
        folder: an empty one.
        seed: of all choices.

    Returns:
        What was changed, the exit codes of ranks (None: one that did not end) and what they wrote.
    """
    chance = random.Random(seed)
    kind = chance.choice(list(KINDS))
    world, path = KINDS[kind], folder / kind
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
            write_all(whole)
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

"""METIS in a process of its own, because METIS may crash: ``python metis_child.py REQUEST``; REQUEST is JSON.

It imports nothing of torch. Arrays are files that it inherits, each a descriptor and a number of int64 entries.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import sys
from typing import Any

OK = 1  # METIS_OK
_OPTIONS = 40  # METIS_NOPTIONS


def main(request: dict[str, Any]) -> None:
    """Partitions the graph of a request; the answer is the part of each node, in the file ``owner``.

    Stages are written to the file ``status`` in turn: "trial", in which a library with other types may crash;
    "partition"; and "done", with METIS's code (1: all is well), whether all constraints were passed to METIS, and the
    peak of the resident memory in bytes.
    """
    sys.path[:] = request["path"]
    import numpy as np
    import pymetis

    def tell(stage: str, **more: Any) -> None:
        text = json.dumps({"stage": stage, **more}).encode()
        os.ftruncate(request["status"], 0)
        os.pwrite(request["status"], text, 0)

    def array(name: str) -> Any:
        descriptor, count = request[name]
        pages = mmap.mmap(descriptor, 8 * count, mmap.MAP_SHARED)
        return np.frombuffer(pages, np.int64)

    tell("trial")
    function = None if request["one_weight"] else exported(pymetis, np)
    tell("partition")
    xadj, adjncy, adjwgt, vwgt, owner = (array(name) for name in ("xadj", "adjncy", "adjwgt", "vwgt", "owner"))
    weights = vwgt.reshape(len(owner), -1)
    if function is not None:
        given = (request["parts"], xadj, adjncy, adjwgt, weights, request["tolerance"], request["seed"])
        code, found = call(np, pymetis, function, *given)
    else:
        options = pymetis.Options(seed=request["seed"], ufactor=max(1, round(1000 * (request["tolerance"][0] - 1))))
        code, found = OK, pymetis.part_graph(
            request["parts"], pymetis.CSRAdjacency(xadj, adjncy), vweights=np.ascontiguousarray(weights[:, 0]),
            eweights=adjwgt, recursive=False, options=options,
        ).vertex_part  # fmt: skip
    if len(found) == len(owner):
        owner[:] = found
    tell("done", code=code, count=len(found), all_weights=function is not None, peak=peak_bytes())


def exported(pymetis: Any, np: Any) -> Any:
    """METIS_PartGraphKway of pymetis's library; None if there is none, its ids do not have 64 bits, or it does not
    divide a small graph correctly."""
    try:
        function = ctypes.CDLL(pymetis._internal.__file__).METIS_PartGraphKway
    except (AttributeError, OSError):
        return None
    if pymetis.zero_copy_dtype() != np.int64:
        return None
    # Two rings of eight, joined by one edge.
    ring = np.arange(16).reshape(2, 8)
    pairs = {(int(a), int(b)) for nodes in ring for a, b in zip(nodes, np.roll(nodes, 1), strict=True)} | {(0, 8)}
    both = sorted(pairs | {(b, a) for a, b in pairs})
    xadj = np.searchsorted([a for a, _ in both], np.arange(17)).astype(np.int64)
    adjncy = np.array([b for _, b in both], np.int64)
    weights = np.stack([np.ones(16, np.int64), np.tile([1, 0], 8)], 1)
    code, found = call(np, pymetis, function, 2, xadj, adjncy, np.ones_like(adjncy), weights, [1.05, 1.05], 1)
    rightly = code == OK and sorted(found.tolist()) == [0] * 8 + [1] * 8 and sorted(found[::2]) == [0] * 4 + [1] * 4
    return function if rightly else None


def call(
    np: Any, pymetis: Any, function: Any, parts: int, xadj: Any, adjncy: Any, adjwgt: Any, weights: Any,
    tolerance: list[float], seed: int,
) -> tuple[int, Any]:  # fmt: skip
    """METIS_PartGraphKway: its code, and the part of each node."""
    options = np.full(_OPTIONS, -1, np.int64)  # -1: METIS's default
    options[int(pymetis.OptionKey.SEED)] = seed
    options[int(pymetis.OptionKey.NUMBERING)] = 0
    count, constraints, number, cut = (ctypes.c_int64(value) for value in (*weights.shape, parts, 0))
    unbalance = (ctypes.c_float * len(tolerance))(*tolerance)
    found = np.full(weights.shape[0], -1, np.int64)

    def at(values: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(values.ctypes.data)

    weights = np.ascontiguousarray(weights)
    function.restype = ctypes.c_int
    code = function(
        ctypes.byref(count), ctypes.byref(constraints), at(xadj), at(adjncy), at(weights), None, at(adjwgt),
        ctypes.byref(number), None, ctypes.byref(unbalance), at(options), ctypes.byref(cut), at(found),
    )  # fmt: skip
    return code, found


def peak_bytes() -> int:
    """The most resident memory that this process had.

    On Linux VmHWM: what getrusage says counts the process that started this one, too.
    """
    if not os.path.exists("/proc/self/status"):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

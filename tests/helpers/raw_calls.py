"""Calls of torch.ops.gnnscale without the package's checks, with arguments of which one or two are hostile."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NUMBERS = [-1, 0, 1, 2, 3, 7, 40, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, 1 << 62]
NUMBERS += [(1 << 63) - 1, -(1 << 63)]
MOST_BYTES = 8 << 30
"""Memory of a fork: what asks for more is refused, and no other process has to end for it."""
LEFT_OUT = {"map_file", "pool_limit", "board_take", "board_leave", "random_bits", "permutation", "rmat_edges"}
"""Operators that are given a descriptor or memory of other processes; the pool's limit, which holds for all; and those
that make as many numbers as they are asked for, which may take minutes."""


def recorded(module: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """The name and arguments of all calls that tests of a module check."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    module.check = lambda op, *arguments, tests=None: calls.append((op._schema.name.split("::")[1], arguments))
    for name, function in list(vars(module).items()):
        if not name.startswith("test_"):
            continue
        choices: dict[str, list[Any]] = {}
        for mark in getattr(function, "pytestmark", []):
            if mark.name == "parametrize":
                names, values = mark.args
                values = [getattr(value, "values", value) for value in values]
                if isinstance(names, tuple):
                    choices |= {",".join(names): values}
                else:
                    choices[names] = [value[0] if isinstance(value, tuple) else value for value in values]
        if "device" in inspect.signature(function).parameters:
            choices["device"] = ["cpu"]
        for chosen in itertools.product(*choices.values()):
            given: dict[str, Any] = {}
            for names, value in zip(choices, chosen, strict=True):
                given |= dict(zip(names.split(","), value, strict=True)) if "," in names else {names: value}
            with suppress(Exception):
                function(**given)
    return [call for call in calls if call[0] not in LEFT_OUT]


def hostile_tensor(tensor: Tensor, chance: random.Random) -> Tensor:
    """A tensor with other entries, of another dtype, shape or stride."""
    how = chance.randrange(10)
    if how < 4 and tensor.numel() and not tensor.is_floating_point():
        flat = tensor.detach().reshape(-1).clone()
        at = chance.choice([0, -1, chance.randrange(len(flat)), slice(None)])
        with suppress(RuntimeError, OverflowError):
            flat[at] = chance.choice([*NUMBERS, len(flat), chance.choice(flat.tolist())])
        return flat.view(tensor.shape)
    if how == 4:
        return tensor.detach().to(chance.choice([torch.int32, torch.int64, torch.float64, torch.uint8, torch.float32]))
    if how == 5 and tensor.dim():
        return tensor.detach()[: chance.choice([0, 1, len(tensor) // 2, max(len(tensor) - 1, 0)])]
    if how == 6 and tensor.dim():
        return torch.cat([tensor.detach()] * chance.choice([2, 3]))
    if how == 7 and tensor.dim():
        return chance.choice([tensor.detach().flip(0)[::2], tensor.detach().transpose(0, -1), tensor.detach()[::2]])
    if how == 8 and len(tensor.shape) and len(tensor):
        return tensor.detach()[:1].expand(chance.choice([0, 1, len(tensor), 200]), *tensor.shape[1:])
    return chance.choice([tensor.detach().unsqueeze(0), tensor.detach().unsqueeze(-1), tensor.detach().reshape(-1)])


def hostile(value: Any, chance: random.Random) -> Any:
    """A value of the same kind, which its operator does not expect."""
    if isinstance(value, Tensor):
        return hostile_tensor(value, chance)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice([*NUMBERS, value + 1, value - 1])
    if isinstance(value, float):
        return chance.choice([0.0, -1.0, float("nan"), float("inf")])
    if isinstance(value, list) and value:
        value, at = list(value), chance.randrange(len(value))
        how = chance.randrange(4)
        if how == 0:
            del value[at]
        elif how == 1:
            value.append(value[at])
        else:
            value[at] = hostile(value[at], chance)
        return value
    return chance.choice([None, [], value])


def call(by_name: dict[str, list[tuple[Any, ...]]], seed: int) -> None:
    """Makes one hostile call of an operator; ``by_name``: arguments of right calls."""
    chance = random.Random(seed)
    name = chance.choice(sorted(by_name))
    arguments = list(chance.choice(by_name[name]))
    for _ in range(chance.choice([1, 1, 2])):
        if arguments:
            at = chance.randrange(len(arguments))
            arguments[at] = hostile(arguments[at], chance)
    with suppress(RuntimeError, TypeError, ValueError, IndexError, MemoryError, NotImplementedError):
        made = getattr(torch.ops.gnnscale, name)(*arguments)
        for tensor in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(tensor, Tensor) and tensor.numel() < 1 << 20:
                tensor.clone()


def _calls_in_fork(by_name: dict[str, list[tuple[Any, ...]]], seeds: range, told: int, log: Path) -> None:
    """The program of a fork: hostile calls, whose seeds it tells before them."""
    with log.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))  # outputs as large as a call says are an error
    for seed in seeds:
        os.write(told, seed.to_bytes(8, "little"))
        signal.alarm(60)
        call(by_name, seed)
    os._exit(0)


def main(first: str, count: str) -> None:
    """Prints, as JSON, the seeds ``first``, ``first`` + 1, ... of hostile calls that ended the process, and what it
    wrote at its end. Each line before has one of them."""
    torch.set_num_threads(1)  # threads do not live on in forks
    sys.path.append(str(Path(__file__).parents[1] / "ops"))
    test_opcheck = importlib.import_module("test_opcheck")
    by_name: dict[str, list[tuple[Any, ...]]] = {}
    for name, arguments in recorded(test_opcheck):
        by_name.setdefault(name, []).append(arguments)
    found, at, end = [], int(first), int(first) + int(count)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        while at < end:
            reader, writer = os.pipe()
            if (pid := os.fork()) == 0:
                _calls_in_fork(by_name, range(at, end), writer, log)
            os.close(writer)
            while told := os.read(reader, 8):
                at = int.from_bytes(told, "little") + 1
            os.close(reader)
            if (code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) == 0:
                break
            found.append({"seed": at - 1, "code": code, "log": log.read_text(errors="replace")[:4000]})
            print(json.dumps(found[-1]), flush=True)
    print(json.dumps(found))

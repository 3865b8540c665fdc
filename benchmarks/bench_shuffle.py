"""Rows that two ranks swap before a layer, and their gradients: by Gloo, and through the memory of peers.

Each rank has 100,000 rows of 512 bytes, and the other rank reads 30,000 of them: over the loopback device, or in its
memory. Both ways take turns within a round; times are those of the slower rank.

    python benchmarks/bench_shuffle.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import judged, parser, save, say_aims
from ranks import is_parent, race, start
from torch import distributed as dist

from torch_gnnscale.distributed.exchange import Exchange
from torch_gnnscale.split.peer_memory import HostMemories
from torch_gnnscale.split.peers import Peers
from torch_gnnscale.split.shuffle_index import ShuffleIndex
from torch_gnnscale.split.transport import Moves, Transport


def rank_main(folder: Path) -> dict[str, list[float]]:
    """Seconds of each way by round."""
    options = json.loads((folder / "options.json").read_text())
    rank, rows, sent = dist.get_rank(), options["rows"], options["sent"]
    exchanges = [Exchange(dist.new_group(backend="gloo"), 2, rank) for _ in range(2)]
    peers = Peers.connect(exchanges[0], HostMemories())
    assert isinstance(peers, Peers)
    transports = {"peers": peers, "gloo": Transport(exchanges[1])}
    counts = [[0], [0]]
    counts[1 - rank] = [sent]
    chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(rank))[:sent]
    moves = Moves(ShuffleIndex(2, rank, chosen, counts, counts), 1)
    x = torch.randn(rows, options["row_bytes"] // 4, requires_grad=True)
    grad = torch.randn(rows + sent, x.size(1))
    found = {name: transport.mixed(x, moves, "check") for name, transport in transports.items()}
    assert torch.equal(found["peers"], found["gloo"])
    grads = [torch.autograd.grad(out, x, grad)[0] for out in found.values()]
    assert torch.equal(*grads)

    def swap(name: str) -> None:
        transports[name].pull(x.detach(), moves, "swap")

    def both(name: str) -> None:
        torch.autograd.grad(transports[name].mixed(x, moves, "both"), x, grad)

    ways = {f"{name}, {what}": (lambda _, name=name, run=run: run(name))
            for name in transports for what, run in (("swap", swap), ("there and back", both))}  # fmt: skip
    return race(ways, options["rounds"])


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--rows", type=int, default=100_000, help="of each rank")
    options.add_argument("--sent", type=int, default=30_000, help="of them, to the other one")
    options.add_argument("--row-bytes", type=int, default=512)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = {name: getattr(args, name) for name in ("rows", "sent", "row_bytes", "rounds")}
        Path(folder, "options.json").write_text(json.dumps(given))
        times = start(__file__, Path(folder), 2, None, 600)[0]
    print("| | Gloo, ms | memory of peers, ms | times as fast |")
    print("|---|---|---|---|")
    found: dict[str, Any] = {**given}
    for what in ("swap", "there and back"):
        pair = times[f"gloo, {what}"], times[f"peers, {what}"]
        gloo, peers = (statistics.median(values) * 1e3 for values in pair)
        ratio = statistics.median(a / b for a, b in zip(*pair, strict=True))
        found[what] = {"gloo_ms": gloo, "peers_ms": peers, "ratio": ratio}
        print(f"| {what} | {gloo:.1f} | {peers:.1f} | {ratio:.1f} |")
    found["aims"] = {"a swap by Gloo over one by memory of peers": judged(found["swap"]["ratio"], least=1.5)}
    say_aims(found["aims"])
    if not args.no_save:
        save("shuffle", found)


if __name__ == "__main__":
    if not is_parent(rank_main):
        main()

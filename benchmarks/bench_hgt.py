"""The two ways in which a narrowed HGTConv multiplies the rows of a relation, beside the one that it chooses: one
thread, forward and backward, in CPU time.

The ways take turns; their outputs are compared first. The constant ``OF_EDGE`` of torch_gnnscale/nn/hgt.py follows
from these figures.

    python benchmarks/bench_hgt.py
"""

import itertools
import statistics
import time
from typing import Any
from unittest import mock

import torch
import torch_geometric.nn as pyg_nn
from common import judged, parser, save, say_aims
from tqdm import tqdm

from torch_gnnscale.nn import hgt
from torch_gnnscale.nn.aggregate import sort_edges

RELATION = ("a", "to", "b")
DESTINATIONS = (200, 2_000)
PER_DESTINATION = (2, 5, 15)
SOURCES_PER_EDGE = (0.05, 0.3, 1.0)


def measure(num_dst: int, per_dst: int, share: float, width: int, heads: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of both ways, and the time of the chosen one over that of the faster one."""
    num_edges = num_dst * per_dst
    num_src = max(1, int(num_edges * share))
    generator = torch.Generator().manual_seed(0)
    ends = [torch.randint(count, (num_edges,), generator=generator) for count in (num_src, num_dst)]
    edges, _ = sort_edges(torch.stack(ends), num_src, num_dst)
    layer = pyg_nn.HGTConv(width, width, (["a", "b"], [RELATION]), heads)
    x = {"a": torch.randn(num_src, width), "b": torch.randn(num_dst, width)}
    x = {key: rows.requires_grad_() for key, rows in x.items()}

    def step(of_destinations: bool) -> torch.Tensor:
        with mock.patch.object(hgt, "multiplies_destinations", return_value=of_destinations):
            return hgt.hgt(layer, x, {RELATION: edges}, {"a": 0, "b": num_dst})["b"]

    torch.testing.assert_close(step(True), step(False), rtol=1e-3, atol=1e-3)
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(rounds):
        for way in (True, False)[:: 1 if turn % 2 else -1]:
            start = time.process_time()
            step(way).square().mean().backward()
            times[way].append(1e3 * (time.process_time() - start))
    found = {way: statistics.median(values) for way, values in times.items()}
    chosen = hgt.multiplies_destinations(edges, width, width, heads)
    return {
        "destinations": num_dst, "edges": num_edges, "sources": num_src, "channels": width, "heads": heads,
        "destinations ms": found[True], "sources ms": found[False],
        "chosen": "destinations" if chosen else "sources", "over the faster": found[chosen] / min(found.values()),
    }  # fmt: skip


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False, rounds=False)
    options.add_argument("--rounds", type=int, default=9, help="interleaved rounds of both ways")
    options.add_argument("--hidden", nargs="+", type=int, default=[64, 256])
    options.add_argument("--heads", nargs="+", type=int, default=[1, 2, 8])
    args = options.parse_args()
    torch.set_num_threads(1)
    found = []
    shapes = [*itertools.product(DESTINATIONS, PER_DESTINATION, SOURCES_PER_EDGE, args.hidden, args.heads)]
    for shape in tqdm(shapes, "shapes"):
        found.append(measure(*shape, args.rounds))
        tqdm.write("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in found[-1].items()))
    worst = max(case["over the faster"] for case in found)
    mean = statistics.geometric_mean(case["over the faster"] for case in found)
    aims = {"the chosen way over the faster one, mean": judged(mean, most=1.05)}
    say_aims(aims)
    print(f"  worst: {worst:.2f}")
    if not args.no_save:
        save("hgt", {"cases": found, "aims": aims})


if __name__ == "__main__":
    main()

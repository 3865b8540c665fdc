"""How long ranks of one machine need to exchange a few numbers after they have computed: on a board, and over Gloo.

    python benchmarks/bench_board.py

Every rank multiplies matrices for some milliseconds, then exchanges eight numbers with each other one, as the header of
a step or the beginning of an exchange of rows. A round takes the time from the moment the last rank has come to the
moment the last one has the numbers. Rounds on the board and over the group take turns.

The aim: the mean round on the board takes at most half of that over the group.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import judged, parser, save, say_aims
from ranks import is_parent, start
from torch import distributed as dist

from torch_gnnscale.distributed import Exchange
from torch_gnnscale.distributed.meeting import Meeting

NUMBERS, SIDE, PRODUCTS = 8, 600, 4
WAYS = ("board", "group")


def in_rank(folder: Path) -> dict[str, list[list[float]]]:
    """When this rank came to each round, and when it had the numbers, in seconds of the machine's clock."""
    rounds = json.loads((folder / "options.json").read_text())
    meeting = Meeting(dist.get_rank(), dist.get_world_size(), 60.0)
    exchanges = {way: Exchange(dist.group.WORLD, meeting.world, meeting.rank) for way in WAYS}
    exchanges["board"].board = meeting.board([[*range(meeting.world)]])
    assert exchanges["board"].board is not None
    matrix, found = torch.randn(SIDE, SIDE), {way: [[], []] for way in WAYS}
    sent = torch.arange(meeting.world).unsqueeze(1).expand(-1, NUMBERS) + 100 * meeting.rank
    expected = (100 * torch.arange(meeting.world)).unsqueeze(1).expand(-1, NUMBERS) + meeting.rank
    for number in range(rounds + 5):
        for way, exchange in exchanges.items():
            for _ in range(PRODUCTS):
                matrix @ matrix
            came = time.perf_counter()
            received = exchange.numbers(sent, "test")
            had = time.perf_counter()
            assert torch.equal(received, expected)
            if number >= 5:  # earlier ones warm up
                found[way][0].append(came)
                found[way][1].append(had)
    meeting.close()
    return found


def measure(world: int, rounds: int) -> dict[str, Any]:
    """Microseconds of a round of so many ranks in both ways."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "options.json").write_text(json.dumps(rounds))
        ranks = start(__file__, folder, world, None, 300)
    result: dict[str, Any] = {"ranks": world}
    for way in WAYS:
        came, had = (torch.tensor([rank[way][at] for rank in ranks], dtype=torch.float64) for at in (0, 1))
        took = (had.amax(0) - came.amax(0)) * 1e6
        result |= {f"{way}_mean_us": float(took.mean()), f"{way}_median_us": float(took.median())}
    result["ratio"] = result["board_mean_us"] / result["group_mean_us"]
    print(", ".join(f"{key} {value:.3g}" for key, value in result.items()), flush=True)
    return result


def main() -> None:
    if is_parent(in_rank):
        return
    options = parser(__doc__.splitlines()[0], graphs=False, rounds=False)
    options.add_argument("--rounds", type=int, default=200, help="in each way")
    options.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    args = options.parse_args()
    results = [measure(world, args.rounds) for world in args.ranks]
    aims = {
        f"{entry['ranks']} ranks: a round on the board over one in the group": judged(entry["ratio"], most=0.5)
        for entry in results
    }
    say_aims(aims)
    if not args.no_save:
        save("board", {"rounds": results, "aims": aims})


if __name__ == "__main__":
    main()

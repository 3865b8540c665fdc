"""Batches, training steps and training loops, beside PyG with pyg-lib where that is installed.

    python benchmarks/bench_training.py
    python benchmarks/bench_training.py --parts models --bfloat16    # steps under autocast

| part | is | in |
|---|---|---|
| batches | complete batches at several settings of both loaders | loader_settings.py |
| models | steps of five models: plain, with trim_to_layer, narrowed | model_steps.py |
| loops | a loop whose loader prepares batches meanwhile | loop_waits.py |
| waits | a loop over a store whose reads wait | waiting_reads.py |
| figure, corners | batches and steps over sizes, fanouts, rows, graphs, times, links, weights and types | sweep.py |
"""

from __future__ import annotations

import torch
from common import MEASURED, SMALL, parser, save
from loader_settings import measure_batches
from loop_waits import BATCHES, measure_loops
from model_steps import measure_models
from sweep import measure_corners, measure_figure, plot
from waiting_reads import measure_waits

PARTS = ("batches", "models", "loops", "waits", "figure", "corners")


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.set_defaults(graphs=None)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options.add_argument("--batches", type=int, default=BATCHES, help="of an epoch of the loops")
    options.add_argument("--bfloat16", action="store_true", help="models under autocast, beside float32 narrowed")
    args = options.parse_args()
    graphs = args.graphs or MEASURED

    def keep(name: str, results: object) -> None:
        if not args.no_save:
            save(name, results)

    if "batches" in args.parts:
        keep("loader", measure_batches(graphs, args.rounds))
    if "models" in args.parts:
        keep("train_bfloat16" if args.bfloat16 else "train", measure_models(graphs, args.rounds, args.bfloat16))
    if "loops" in args.parts:
        loops, settings = measure_loops(args.graphs or [*MEASURED, *SMALL], args.batches, args.rounds)
        keep("loop", loops)
        keep("ahead", settings)
    if "waits" in args.parts:
        keep("waits", measure_waits(args.batches, args.rounds))
    torch.set_num_threads(2)
    if "figure" in args.parts:
        results = measure_figure(args.rounds)
        keep("figure", results)
        if not args.no_save:
            plot(results)
    if "corners" in args.parts:
        keep("corners", measure_corners(args.rounds))


if __name__ == "__main__":
    main()

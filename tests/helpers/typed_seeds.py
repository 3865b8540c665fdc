"""Seeds of three node types and loaders of them."""

import torch

from torch_gnnscale import NeighborLoader

from .hetero import AUTHOR, PAPER, VENUE, make_hetero, with_times, with_weights

PAPERS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 39, 0])  # the first and the last node, and one twice
AUTHORS = torch.arange(25) % 3 == 0  # a mask of nine
VENUES = torch.tensor([4, 0])
SEEDS = {PAPER: PAPERS, AUTHOR: AUTHORS, VENUE: VENUES}
IDS = {PAPER: PAPERS, AUTHOR: AUTHORS.nonzero().view(-1), VENUE: VENUES}
TIMES = {PAPER: torch.arange(10) % 4, AUTHOR: torch.arange(9) % 5, VENUE: torch.tensor([2, 3])}


def data_of():
    return with_weights(with_times(make_hetero()))


def loader_of(data=None, seeds=SEEDS, **options):
    options = {"num_neighbors": [3, 2], "batch_size": 6, "shuffle": True, "seed": 3, **options}
    return NeighborLoader(data_of() if data is None else data, input_nodes=seeds, **options)

"""What tests of tiers share."""

import torch
from datasets_for_tests import make_data
from torch_geometric.data import Data

NODES = 200
WIDE = 24


def node_data(dtype: torch.dtype = torch.float64) -> Data:
    """Rows that tell which node's they are; narrow labels beside them."""
    data = make_data(NODES)
    del data.edge_attr
    data.x = torch.arange(NODES)[:, None].to(dtype) + torch.arange(WIDE) / 64
    data.train_mask = torch.arange(NODES) % 3 == 0
    return data

"""Layer-wise samples that are compared with their twins, and the example of the matrix paper."""

import reference
import torch
from helpers.graphs import Graph, assert_same
from reference import layerwise as twin

from torch_gnnscale import ops

# Figure 1 of the matrix paper, both ways: N(1) = {0, 2, 4}, N(5) = {3, 4}, and no other edges into the batch {1, 5}.
FIGURE = Graph(*reference.coo_to_csc(*torch.tensor([[0, 2, 4, 3, 4], [1, 1, 1, 5, 5]]), 6, 6))
FIGURE = Graph(FIGURE.colptr, FIGURE.row[:, 0].contiguous())
BATCH = torch.tensor([1, 5])


def both(graph, seeds, num_nodes, key, drawing, **options):
    """The sample, which equals its twin's."""
    relations = graph.relations()
    if drawing.method == "fastgcn":
        options["score"] = ops.node_scores(relations, drawing.scores)
    found = ops.sample_layers(relations, seeds, num_nodes, key, drawing, **options)
    assert_same(found, reference.sample_layers(relations, seeds, num_nodes, key, drawing, **options))
    return found


def scores_of(graph, seeds, scores):
    """LADIES' scores of a batch, by node."""
    return twin.frontier_scores(graph.relations(), seeds.tolist(), scores)

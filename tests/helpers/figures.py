"""What is to be seen in a figure."""

from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="no figures are drawn without it")

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox


def kept(monkeypatch) -> list[Figure]:
    """The figures that are saved from now on."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kw: figures.append(figure) or save(figure, *args, **kw)
    )
    return figures


def legends_of(figure: Figure) -> list[Legend]:
    """All legends: of the figure, of its parts and of its panels."""
    own = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    return [*figure.legends, *own, *(legend for part in figure.subfigs for legend in part.legends)]


def covers(box: Bbox, axes: Axes) -> bool:
    """Whether a box lies over anything that is drawn in a panel: a line, a bar, a point or its error."""
    paths = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
    points = []
    for drawn in axes.collections:
        if isinstance(drawn, PathCollection):  # of scatter
            points += drawn.get_offset_transform().transform(drawn.get_offsets()).tolist()
        else:
            paths += [drawn.get_transform().transform_path(path) for path in drawn.get_paths()]
    return (
        any(path.intersects_bbox(box, filled=False) for path in paths)
        or any(bar.get_window_extent().overlaps(box) for bar in axes.patches)
        or any(box.contains(x, y) for x, y in points)
    )


def check_seen(figure: Figure) -> None:
    """Checks a saved figure: no legend covers anything, no line runs along the upper edge of its panel, and of curves
    or points that coincide each is smaller than those below."""
    boxes = [legend.get_window_extent() for legend in legends_of(figure)]
    for axes in figure.axes:
        assert not any(covers(box, axes) for box in boxes), axes.get_title()
        for line in axes.lines:
            height = line.get_transform().transform(line.get_xydata())[:, 1]
            along = height > axes.get_window_extent().y1 - 1
            assert not (along[1:] & along[:-1]).any(), (axes.get_title(), line.get_label())
        curves = [line for line in axes.lines if line.get_linestyle() != "None"]  # others are ends of error bars
        for below, above in combinations(curves, 2):
            if np.array_equal(below.get_xydata(), above.get_xydata()):
                assert below.get_linewidth() > above.get_linewidth(), (axes.get_title(), above.get_label())
                assert below.get_marker() == "None" or below.get_markersize() > above.get_markersize()
        points = [drawn for drawn in axes.collections if isinstance(drawn, PathCollection)]
        for below, above in combinations(points, 2):
            if np.array_equal(below.get_offsets(), above.get_offsets()):
                assert below.get_sizes().min() > above.get_sizes().max(), (axes.get_title(), above.get_label())

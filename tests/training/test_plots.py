"""The plot of a run."""

import pytest
from helpers.figures import check_seen, kept, legends_of
from helpers.slow import SLOW

from torch_gnnscale.training import plot_run


@pytest.mark.parametrize("val", [[1.0], SLOW([0.98, 0.995]), SLOW([0.0, 0.0])])
def test_axes_show_epochs_and_scores_that_there_are(val, tmp_path, monkeypatch):
    figures = kept(monkeypatch)
    history = [{"epoch": number + 1, "loss": 0.5, "val": score} for number, score in enumerate(val)]
    summary = {"history": history, "test": val[-1], "metric": "accuracy", "seconds": {"train": 1.0}}
    plot_run({**summary, "model": "GraphSAGE", "task": "small"}, tmp_path / "run.png")
    left, middle, _ = figures[0].axes
    for axes in (left, middle):
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
    low, high = middle.get_ylim()
    assert 0 <= low <= min(val)
    assert max(val) <= high <= 1


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [False, True])
def test_the_legend_covers_no_panel(baseline, tmp_path, monkeypatch):
    figures = kept(monkeypatch)
    history = [{"epoch": epoch, "loss": 1 / epoch, "val": 0.1 * epoch} for epoch in range(1, 6)]
    summary = {"history": history, "test": 0.3, "metric": "accuracy", "seconds": {"train": 1.0, "wait": 0.1}}
    given = {"baseline": {"name": "MLP on features alone", "test": 0.5}} if baseline else {}
    plot_run({**summary, **given, "model": "GraphSAGE", "task": "small"}, tmp_path / "run.png")
    (figure,) = figures
    (legend,) = legends_of(figure)
    names = ["validation", "test, best epoch", *(["MLP on features alone"] if baseline else [])]
    assert [text.get_text() for text in legend.get_texts()] == names
    left, middle, right = figure.axes
    drawn = [[list(line.get_ydata()) for line in axes.lines] for axes in (left, middle)]
    levels = [[0.3, 0.3], *([[0.5, 0.5]] if baseline else [])]
    assert drawn == [[[entry["loss"] for entry in history]], [[entry["val"] for entry in history], *levels]]
    assert [list(axes.lines[0].get_xdata()) for axes in (left, middle)] == [[1, 2, 3, 4, 5]] * 2
    assert [bar.get_width() for bar in right.patches] == [1.0, 0.1]
    check_seen(figure)
    assert not any(legend.get_window_extent().overlaps(axes.get_tightbbox()) for axes in figure.axes)

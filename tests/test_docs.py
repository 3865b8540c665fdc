"""The Python of README and documentation runs: the blocks of a page, one after the other, are one program."""

import inspect
import re
from pathlib import Path

import pytest
import torch_geometric.loader
from helpers import forked
from helpers.data import environment

from torch_gnnscale import partition
from torch_gnnscale.datasets import planted

ROOT = Path(__file__).parents[1]
PAGES = ["README.md"] + [
    f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")) if "\n```python\n" in page.read_text()
]
ON_PARTS = ("docs/scaling_rows.md", "docs/scaling_failures.md")
ON_RANKS = ("docs/ddp_lightning.md", "docs/scaling.md", *ON_PARTS)


def blocks_of(page: str) -> list[str]:
    if not (ROOT / page).is_file():
        pytest.skip(f"no checkout: {page} is not here")
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_are_a_program(page, tmp_path):
    blocks = blocks_of(page)
    assert blocks
    (tmp_path / "page.py").write_text("\n".join(blocks))
    if page in ON_PARTS:
        partition.write(planted(num_nodes=2000), tmp_path / "parts", parts=2)
    if page in ON_RANKS:
        program = f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path('page.py', run_name='__main__')"
        for done in forked.run_ranks(2, program, **environment()):
            assert done.returncode == 0, done.stderr
    else:
        done = forked.run_file(tmp_path / "page.py", folder=tmp_path, **environment())
        assert done.returncode == 0, done.stderr
    if page == "README.md":
        accuracy = re.search(r"^test accuracy: (\d\.\d+)$", done.stdout, re.MULTILINE)
        assert accuracy is not None, done.stdout
        assert float(accuracy[1]) > 0.85


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_the_manual_is_short(page):
    """What was measured and tried is in docs/notes."""
    assert len(page.read_text().split()) < 1500


def test_every_argument_of_pygs_loaders_has_a_row():
    if not (page := ROOT / "docs" / "from_pyg.md").is_file():
        pytest.skip("no checkout: docs/from_pyg.md is not here")
    rows = re.findall(r"^\| (`[^|]*)", page.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    for loader in (torch_geometric.loader.NeighborLoader, torch_geometric.loader.LinkNeighborLoader):
        for kind in loader.__mro__[:2]:
            assert {*inspect.signature(kind).parameters} - {"kwargs", "node_sampler", "link_sampler"} <= named

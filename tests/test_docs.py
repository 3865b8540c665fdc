"""What README and documentation say runs: the Python blocks of a page, one after the other, are one program, and so are
the commands of each block."""

import argparse
import glob
import inspect
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch_geometric.loader
from helpers import forked
from helpers.data import environment
from helpers.slow import NIGHTLY

from torch_gnnscale import partition
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import planted, write_shop

ROOT = Path(__file__).parents[1]
PAGES = ["README.md"] + [
    f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")) if "\n```python\n" in page.read_text()
]
ON_PARTS = ("docs/scaling_rows.md", "docs/scaling_failures.md")
ON_RANKS = ("docs/ddp_lightning.md", "docs/scaling.md", "docs/scaling_inference.md", *ON_PARTS)


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


COMMAND = re.compile(
    r"^ {4}(gnnscale|torchrun --nproc-per-node[= ](\d+) -m (?:-- )?torch_gnnscale) (.+)$", re.MULTILINE
)
COMMANDS = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))


def commands_of(page: str) -> list[list[tuple[int, list[str]]]]:
    """Of each block of a page the commands, as their ranks and arguments. Those that show which options there are, such
    as ``[--seed N] ...``, are none."""
    if not (ROOT / page).is_file():
        pytest.skip(f"no checkout: {page} is not here")
    blocks = re.findall(r"(?:^ {4}.*\n)+", (ROOT / page).read_text(), re.MULTILINE)
    found = [
        [(int(ranks or 1), shlex.split(words, comments=True)) for _, ranks, words in COMMAND.findall(block)
         if not re.search(r"^[^#]*(\[|\.\.\.)", words)]
        for block in blocks
    ]  # fmt: skip
    return [commands for commands in found if commands]


@pytest.mark.parametrize("page", COMMANDS)
def test_the_options_of_a_command_exist(page, monkeypatch):
    class Parsed(Exception):
        pass

    def parsed(parser, words):
        parse(parser, words)
        raise Parsed

    parse = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    for _, words in [command for block in commands_of(page) for command in block]:
        with pytest.raises(Parsed):
            main(words)


SMALLER = "from torch_gnnscale.datasets import planted; planted.__defaults__ = 5000, *planted.__defaults__[1:]\n"


def inputs(folder: Path) -> None:
    """Files that commands read, by the names that pages give them."""
    import pyarrow
    from pyarrow import parquet

    data = planted(num_nodes=500)
    edges = data.edge_index.numpy()
    np.savetxt(folder / "edges.csv", edges.T, fmt="%d", delimiter=",", header="source,target", comments="")
    np.savetxt(folder / "sales.csv", edges.T, fmt="%d", delimiter=",", header="user,item", comments="")
    parquet.write_table(pyarrow.table({"src": edges[0], "dst": edges[1]}), folder / "edges-0.parquet")
    write_shop(folder / "tables")
    np.save(folder / "x.npy", data.x.numpy())
    np.save(folder / "y.npy", data.y.numpy())
    np.savez(folder / "split.npz", train=data.train_mask, val=data.val_mask, test=data.test_mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "README.md", "docs/command.md", "docs/scaling_inference.md", "docs/split_parts.md", "docs/tables.md",
        NIGHTLY("docs/scaling.md"), NIGHTLY("docs/split.md"), NIGHTLY("docs/tables_parts.md"),
    ],
)  # fmt: skip
def test_the_commands_of_a_block_are_a_program(page, tmp_path):
    """But for data sets and packages that are not here; training takes one epoch on a smaller graph."""
    blocks = commands_of(page)
    assert blocks
    for number, block in enumerate(blocks):
        folder = tmp_path / str(number)
        folder.mkdir()
        inputs(folder)
        for ranks, words in block:
            if {"--root", "pyg", "cuda", "spark", "ray"} & {*words}:
                continue
            words = [path for word in words for path in (sorted(glob.glob(word, root_dir=folder)) or [word])]
            words += ["--epochs", "1"] if words[0] == "train" else []
            program = (
                f"{SMALLER}import os; os.chdir({str(folder)!r})\nfrom torch_gnnscale.cli import main\nmain({words!r})"
            )
            for done in forked.run_ranks(ranks, program, **environment()):
                assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_the_manual_is_short(page):
    """What was measured and tried is in docs/notes."""
    assert len(page.read_text().split()) < 1500


def test_every_program_of_ranks_ends_with_a_barrier_and_destroys_the_group():
    """Else a rank may abort at its end, which is torch's fault (docs/ddp_lightning.md)."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    if not pages[0].is_file():
        pytest.skip("no checkout: README.md is not here")
    begun = {}
    for page in pages:
        text = page.read_text()
        lines = [line.strip(' ",').removesuffix("\\n").strip() for line in text.splitlines()]
        begins = [at for at, line in enumerate(lines) if line.startswith("dist.init_process_group(")]
        ends = [at for at, line in enumerate(lines) if line == "dist.destroy_process_group()"]
        assert [lines[at - 1] for at in ends] == ["dist.barrier()"] * len(begins), page
        assert all(begin < end for begin, end in zip(begins, ends, strict=True)), page
        if "DistributedDataParallel(" in text:  # whose module would be the last to hold the group
            assert all(lines[at - 2].startswith("del ") for at in ends), page
        begun[page] = len(begins)
    assert sum(begun.values()) >= 8


def test_every_argument_of_pygs_loaders_has_a_row():
    if not (page := ROOT / "docs" / "from_pyg.md").is_file():
        pytest.skip("no checkout: docs/from_pyg.md is not here")
    rows = re.findall(r"^\| (`[^|]*)", page.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    for loader in (torch_geometric.loader.NeighborLoader, torch_geometric.loader.LinkNeighborLoader):
        for kind in loader.__mro__[:2]:
            assert {*inspect.signature(kind).parameters} - {"kwargs", "node_sampler", "link_sampler"} <= named

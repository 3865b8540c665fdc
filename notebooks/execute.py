"""Executes notebooks from top to bottom; fails at the first error. With --write, keeps the outputs in the files."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main() -> None:
    """Executes the notebooks named on the command line."""
    write = "--write" in sys.argv
    for name in sys.argv[1:]:
        if name == "--write":
            continue
        path = Path(name)
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
        print(f"{path}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells ran")
        if write:
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)
                if cell.cell_type == "code":  # warnings name folders of this machine
                    cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            nbformat.write(notebook, path)


if __name__ == "__main__":
    main()

"""Pages of the notebooks: the outputs are those that lie in them, so that no page depends on what a build runs.

``notebooks/execute.py --write`` runs a notebook and keeps its outputs; CI runs all of them (``make notebooks``).
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
NOTEBOOKS = DOCS.parent / "notebooks"
PAGES = DOCS / "notebooks"


def write_pages() -> None:
    """Writes a page of MyST, and its images, for each notebook; pages that are as before keep their time."""
    PAGES.mkdir(exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        parts = []
        for number, cell in enumerate(json.loads(path.read_text())["cells"]):
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                parts.append(re.sub(r"\]\(\.\./docs/", "](../", source))
            else:
                parts.append(f"```python\n{source}\n```")
                parts += _outputs(cell["outputs"], f"{path.stem}_{number}")
        _write(PAGES / f"{path.stem}.md", "\n\n".join(parts).encode() + b"\n")


def _outputs(outputs: list[dict[str, Any]], name: str) -> list[str]:
    text, images = "", []
    for number, output in enumerate(outputs):
        data = output.get("data", {})
        if "image/png" in data:
            image = f"{name}_{number}.png"
            _write(PAGES / image, base64.b64decode(data["image/png"]))
            images.append(f"![what the cell draws]({image})")
        else:
            text += "".join(output.get("text", data.get("text/plain", [])))
    printed = [f"```{{code-block}} text\n:class: output\n\n{text.rstrip()}\n```"] if text else []
    return printed + images


def _write(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        path.write_bytes(content)

"""Every module imports only from those that stand before it, and no imports form a circle."""

import ast
import graphlib
from pathlib import Path

import pytest

import torch_gnnscale

ROOT = Path(torch_gnnscale.__file__).parent
MODULES = "torch", "dist", "nn", "threading", "DistributedDataParallel"
"""Names by which modules of torch, and threading, are called."""
ORDER = [
    "_private", "_library", "_user", "machine", "random", "remote",
    "ops", "splits", "matrix", "files", "memory", "comm", "topology", "feature", "sampler", "loader", "patch", "nn",
    "bench", "partition", "distributed", "infer", "split", "tables", "relational", "datasets", "training", "tasks",
    "__init__", "cli", "__main__",
]  # fmt: skip
"""The folders and modules of the package: each imports only from itself and from those before it."""
KNOWN: set[tuple[str, str]] = set()
"""Imports that break the rule: (module, module that it imports). To be emptied, never to be added to."""


def modules_of(root: Path) -> dict[str, Path]:
    """The modules below ``root`` by their dotted names: a package's own is ``package.__init__``."""
    return {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")}


def imports_of(name: str, modules: dict[str, Path], package: str) -> set[str]:
    """The modules of the package that a module imports anywhere: in functions and for annotations, too."""
    folder = name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(modules[name].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            pairs = [(parts[1:-1], parts[-1]) for parts in names if parts[0] == package and len(parts) > 1]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = [*folder[: len(folder) - node.level + 1], *base]
            elif base[0] == package:
                base = base[1:]
            else:
                continue
            pairs = [(base, alias.name) for alias in node.names]
        else:
            continue
        for base, last in pairs:
            choices = [[*base, last], [*base, last, "__init__"], base, [*base, "__init__"]]
            found.add(next(dotted for dotted in map(".".join, choices) if dotted in modules))
    return found - {name}


def from_later(imports: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The imports of a module that stands later in ORDER."""
    place = {name: number for number, name in enumerate(ORDER)}
    pairs = {(importer, imported) for importer, found in imports.items() for imported in found}
    return {pair for pair in pairs if place[pair[0].split(".")[0]] < place[pair[1].split(".")[0]]}


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Modules of which each is imported by the next one, and the last one is the first; empty if there are none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_every_module_has_its_place():
    assert {name.split(".")[0] for name in modules_of(ROOT)} <= set(ORDER)
    assert len(set(ORDER)) == len(ORDER)


def test_imports_of_the_package():
    modules = modules_of(ROOT)
    imports = {name: imports_of(name, modules, ROOT.name) for name in modules}
    assert sum(map(len, imports.values())) > 100
    pairs = {(name, other) for name, found in imports.items() for other in found}
    assert pairs >= KNOWN, "these exceptions are no longer needed"
    kept = {name: {other for other in found if (name, other) not in KNOWN} for name, found in imports.items()}
    assert from_later(kept) == set()
    assert circle_in(kept) == []


@pytest.mark.parametrize(
    "text",
    [
        "from ..loader import late", "from ..loader.late import name", "import package.loader.late",
        "from package.loader import late", "from package.loader.late import name",
        "def f():\n    from ..loader import late", "if TYPE_CHECKING:\n    from ..loader.late import name",
    ],
)  # fmt: skip
def test_an_import_is_found_in_every_form(tmp_path, text):
    for name in ("ops/__init__", "ops/early", "loader/__init__", "loader/late"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text if name == "ops/early" else "from . import name\nimport os.path\n")
    (tmp_path / "__init__.py").write_text("from .loader import name\n")
    modules = modules_of(tmp_path)
    imports = {name: imports_of(name, modules, "package") for name in modules}
    assert from_later(imports) == {("ops.early", "loader.late")}
    assert imports["__init__"] == {"loader.__init__"}
    assert circle_in(imports) == []
    assert len(circle_in({**imports, "loader.late": {"ops.early"}})) == 3


def private_names(path: Path) -> set[str]:
    """The private names of torch and threading that a module imports, or reads as attributes of these modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and node.module
            and node.module.split(".")[0] == "torch"
        ):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
            while isinstance(node.value, ast.Attribute):
                node = node.value
                names.append(node.attr)
            if not isinstance(node.value, ast.Name) or node.value.id not in MODULES or "aten" in names:
                continue
        else:
            continue
        found |= {name for name in names if name.startswith("_") and not name.startswith("__")}
    return found


def test_private_names_of_torch_stand_in_one_file():
    found = {path.name: names for path in ROOT.rglob("*.py") if (names := private_names(path))}
    assert {*found} == {"_private.py"}
    assert len(found["_private.py"]) > 10


def test_private_names_are_used():
    names = [node.name for node in ast.parse((ROOT / "_private.py").read_text()).body if hasattr(node, "name")]
    texts = [path.read_text() for path in ROOT.rglob("*.py") if path.name != "_private.py"]
    assert all(any(name in text for text in texts) for name in names)

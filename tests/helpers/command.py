"""The command ``gnnscale`` in this process."""

from typing import Any

import pytest

from torch_gnnscale.cli import main


def refused_command(capsys: Any, *arguments: Any) -> str:
    """What the command says, which ends because of its arguments."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr().err

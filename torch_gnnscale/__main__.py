"""``python -m torch_gnnscale``: the command ``gnnscale``."""

from .cli import main

main()

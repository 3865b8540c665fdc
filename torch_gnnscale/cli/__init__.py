"""The command ``gnnscale``: its subcommands, and ``command.py``, which parses and ends all of them alike."""

from .command import main as main

"""The command ``gnnscale``: a file for each subcommand, and ``command.py``, which parses and ends all of them alike."""

from .command import main as main

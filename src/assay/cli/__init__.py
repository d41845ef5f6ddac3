"""The command line: one file per verb, each of which parses, calls the library, and renders.

`main` is the group of verbs.  Nothing heavy is imported before a verb runs.
"""

from assay.cli.app import main

__all__ = ["main"]

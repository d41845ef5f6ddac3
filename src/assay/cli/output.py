"""What a verb prints: its result to stdout (JSON with ``--json``), everything else to stderr.

Colour is used on a terminal only, and never where ``NO_COLOR`` is set.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Progress = Callable[[int, int, str], None]
"""``progress(done_bytes, total_bytes, what)``."""

PLAIN_WIDTH = 1000
"""Columns of output that goes to a file or a pipe, where nothing may be wrapped or cut."""

SECONDS_BETWEEN_LINES = 10.0
"""How often progress is reported where there is no terminal to draw a bar on."""


def printable(text: str) -> str:
    """`text` with control characters replaced: names come from files, and must not steer the terminal.

    >>> printable("a\\x1b[2Jb")
    'a�[2Jb'
    """
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


class Output:
    """Where one verb's result, notes and progress go.

    Args:
        as_json: the result is one JSON document; otherwise it is prose and tables.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json

    def result(
        self, document: Mapping[str, Any] | Sequence[Any], human: Callable[[], Iterator[RenderableType]]
    ) -> None:
        """Print the verb's result: `document` as JSON, or what `human` yields, one after the other."""
        if self.as_json:
            print(json.dumps(document, indent=2, ensure_ascii=False))
            return
        console = _console(sys.stdout)
        with console.capture() as captured:
            for part in human():
                console.print(printable(part) if isinstance(part, str) else part)
        for line in captured.get().splitlines():
            print(line.rstrip())

    def note(self, text: str) -> None:
        """A remark on stderr."""
        print(printable(text), file=sys.stderr)

    def warn(self, text: str) -> None:
        """A warning on stderr."""
        _console(sys.stderr).print(printable(f"warning: {text}"), style="yellow")

    @contextmanager
    def progress(self, verb: str, *, unit: str = "bytes") -> Iterator[Progress]:
        """A callback that draws a bar on a terminal, and otherwise prints a line now and then."""
        if not sys.stderr.isatty():
            yield _lines(verb)
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(verb, total=None)

            def report(done: int, total: int, what: str) -> None:
                bar.update(task, completed=done, total=total, description=f"{verb} {printable(what)[-40:]}")

            yield report


def _console(stream: IO[str]) -> Console:
    from rich.console import Console

    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def _lines(verb: str) -> Progress:
    last = time.monotonic()

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            share = f"{100 * done // total} %" if total else f"{done} bytes"
            print(f"{verb}: {share}, {printable(what)}", file=sys.stderr, flush=True)

    return report

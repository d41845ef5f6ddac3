"""The group of verbs, and the one place where an exception becomes a sentence and an exit code."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from assay import __version__
from assay.cli.output import printable
from assay.core.errors import AssayError

VERBS = (
    "calibrate",
    "plan",
    "pack",
    "drift",
    "apply",
    "merge",
    "inspect",
    "verify",
    "audit",
    "list",
    "show",
    "new",
)
"""In the order of the help page; each is the command of that name in ``assay.cli.<verb>``."""

MISUSE, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


class Verbs(click.Group):
    """A group that imports a verb when it is asked for, and turns every error into one line.

    Exit codes: 0 holds, 1 refuted or rejected, 2 misuse, bad input or internal error, 3 undecided.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the help page."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, imported now; None if there is no such verb."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"assay.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that the arguments begin with.

        Raises:
            click.UsageError: there is no such verb; the message names the nearest ones.
        """
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, VERBS, n=2, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(repr(n) for n in near)}?"
                if near
                else f"there are {', '.join(VERBS)}"
            )
            raise click.UsageError(f"no verb is called {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb.  Click would turn these two into other exceptions, so they are dealt with here."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The reader has gone: say nothing, and keep the interpreter from flushing into the closed pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(BROKEN_PIPE)
        except KeyboardInterrupt:
            _leave("interrupted; run the same command again to resume", INTERRUPTED)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse and run; with `standalone_mode` (the default) this leaves the interpreter."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.UsageError as error:
            verb = error.ctx.command_path if error.ctx else "assay"
            _leave(f"{_clause(error.format_message())} (see '{verb} --help')", MISUSE)
        except click.ClickException as error:
            _leave(_clause(error.format_message()), MISUSE)
        except click.Abort:
            _leave("interrupted; run the same command again to resume", INTERRUPTED)
        except Exception as error:
            if "--traceback" in (sys.argv[1:] if args is None else args):
                traceback.print_exc()
            _leave(_sentence(error), error.exit_code if isinstance(error, AssayError) else MISUSE)
        sys.exit(code if isinstance(code, int) else 0)


def _clause(message: str) -> str:
    """Click's message as the one sentence of ours: no capital, no full stop, no line break."""
    text = " ".join(message.split()).removesuffix(".").replace(". Did you mean", "; did you mean")
    return text[:1].lower() + text[1:]


def _sentence(error: Exception) -> str:
    if isinstance(error, AssayError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory; fewer --workers need less"
    return (
        f"internal error, which is a defect of assay: {type(error).__name__}: {error}"
        " (run the command again with --traceback, and report what it prints)"
    )


def _leave(sentence: str, code: int) -> NoReturn:
    click.echo(f"assay: {printable(sentence)}", err=True)
    sys.exit(code)


traceback_option = click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    help="On an error, print where in the code it arose.",
)


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@traceback_option
@click.version_option(__version__, "-V", "--version", prog_name="assay", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Machine-learning algorithms that ship with their guarantees.

    Exit codes: 0 holds, accepted, done; 1 refuted, rejected, budget not met; 2 misuse, bad input, internal
    error; 3 undecided or unsupported.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(MISUSE)

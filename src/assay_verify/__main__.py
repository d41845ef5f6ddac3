"""``python -m assay_verify FILE``: check a certificate, or the certificate inside an assay delta."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from assay_verify import rendering, subjects
from assay_verify.outcome import Misuse, Rejected, Report, Unsupported

ACCEPTED, REJECTED, MISUSE, UNSUPPORTED = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one file; the exit code: 0 accepted, 1 rejected, 2 misuse, 3 unsupported."""
    parser = argparse.ArgumentParser(prog="assay_verify", description=__doc__, allow_abbrev=False)
    parser.add_argument("file", type=Path, metavar="FILE", help="a certificate (JSON) or an assay delta")
    parser.add_argument(
        "--subject",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="something the certificate speaks of; for a pack base=PATH, finetuned=PATH and delta=PATH",
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    options = parser.parse_args(arguments)
    report = Report()
    try:
        report = subjects.check(options.file, options.subject)
        code, reason = ACCEPTED, ""
    except Rejected as error:
        code, reason = REJECTED, str(error)
    except Unsupported as error:
        code, reason = UNSUPPORTED, str(error)
    except Misuse as error:
        code, reason = MISUSE, str(error)
    except OSError as error:
        code, reason = MISUSE, f"{error.filename}: {error.strerror}"
    except MemoryError:
        code, reason = REJECTED, "the file asks for more memory than there is"
    except (
        Exception
    ) as error:  # whatever goes wrong, a file is never accepted by accident, nor by a traceback
        code = MISUSE
        reason = (
            f"the checker itself failed ({type(error).__name__}: {error}); nothing is said about the file"
        )
    render = rendering.as_json if options.json else rendering.as_text
    print(render(str(options.file), code, reason, report))
    return code


if __name__ == "__main__":
    sys.exit(main())

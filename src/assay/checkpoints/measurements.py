"""Files of measurements: float arrays by name and strings of metadata, as safetensors; moments and energies.

What the arrays mean, and whether they can be true, is the business of those who read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from assay.checkpoints.header import DTYPES, LENGTH_BYTES, build_header
from assay.checkpoints.output import AtomicFile
from assay.core.errors import InputError


def write_measurements(
    path: str | os.PathLike[str],
    arrays: Iterable[tuple[str, str, np.ndarray]],
    metadata: Mapping[str, str],
) -> None:
    """Write arrays, each with its name and type (``F32``, ``F64``), whole or not at all.

    Equal content gives equal bytes.

    Raises:
        InputError: the file cannot be written.
    """
    parts = list(arrays)
    header = build_header([(name, dtype, value.shape) for name, dtype, value in parts], dict(metadata))
    with AtomicFile(path) as file:
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        for _, dtype, value in parts:
            file.write(np.ascontiguousarray(value, DTYPES[dtype]))


def read_measurements(
    path: Path, what: str, *, form: str, version: str, required: Iterable[str]
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The metadata and the arrays of a file of measurements.

    Args:
        path: the file.
        what: how messages call what it holds, as in "a moments file".
        form, version: what its metadata must say.
        required: other keys that its metadata must have.

    Raises:
        InputError: it is no such file, of another version, or a key is missing.
    """
    article = "an" if what[0] in "aeiou" else "a"
    try:
        with safe_open(path, framework="numpy") as stored:
            metadata = stored.metadata() or {}
            if metadata.get("format") != form:
                raise InputError(f"{path} is not {article} {what} file: its metadata has no format {form!r}")
            values = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as {article} {what} file: {error}") from error
    if metadata.get("version") != version:
        raise InputError(
            f"{path} has {what} version {metadata.get('version')!r}, this assay reads {version!r}: calibrate again"
        )
    missing = next((key for key in required if key not in metadata), None)
    if missing is not None:
        raise InputError(f"{path} has no {missing!r} in its metadata: calibrate again")
    return metadata, values


__all__ = ["read_measurements", "write_measurements"]

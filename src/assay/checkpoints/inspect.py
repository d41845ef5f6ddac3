"""What a file is and what it holds, from its headers and its certificate; the weights are not read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.checkpoints.delta import Delta, is_delta
from assay.checkpoints.io import Checkpoint, open_checkpoint
from assay.core.certificate import Certificate
from assay.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Inspection:
    """`kind` is ``delta``, ``checkpoint`` or ``certificate``; `document` is JSON; `certificate` where there is one."""

    path: Path
    kind: str
    document: Mapping[str, Any]
    certificate: Certificate | None = None


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Describe a delta, a checkpoint or a certificate.

    Raises:
        InputError: it is none of these, or damaged.
    """
    place = Path(path)
    if not place.exists():
        raise InputError(f"there is no file or folder {place}")
    if place.is_file() and _looks_like_json(place):
        certificate = Certificate.load(place)
        return Inspection(place, "certificate", certificate.document, certificate)
    if place.is_file() and is_delta(place):
        return _delta(place)
    with open_checkpoint(place) as checkpoint:
        return Inspection(place, "checkpoint", _checkpoint(checkpoint))


def _looks_like_json(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(1) == b"{"


def _delta(path: Path) -> Inspection:
    patch = Delta(path)
    try:
        certificate = patch.certificate
        records = list(patch.records.values())
        count = 0
        for record in records:
            size = 1
            for n in record["shape"]:
                size *= n
            count += 0 if record["treatment"] == "absent" else size
        document = {
            "format": "assay-delta",
            "id": patch.id,
            "base": patch.base,
            "bytes": patch.size,
            "parameters": count,
            "seed": patch.plan.get("seed"),
            "folder": bool(patch.plan.get("folder")),
            "files": [file["name"] for file in patch.plan.get("files", [])],
            "carried": [file["name"] for file in patch.plan.get("carried", [])],
            "tensors": [
                {key: value for key, value in record.items() if key != "blocks"}
                | {"bytes": sum(record.get("blocks", []))}
                for record in records
            ],
            "certificate": None if certificate is None else dict(certificate.document),
        }
        return Inspection(path, "delta", document, certificate)
    finally:
        patch.close()


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    tensors = checkpoint.tensors.values()
    return {
        "format": "safetensors",
        "bytes": sum(shard.size for shard in checkpoint.shards),
        "parameters": sum(info.count for info in tensors),
        "files": [shard.file for shard in checkpoint.shards],
        "carried": list(checkpoint.carried),
        "tensors": [
            {"name": info.name, "dtype": info.dtype, "shape": list(info.shape), "bytes": info.nbytes}
            for info in tensors
        ],
    }

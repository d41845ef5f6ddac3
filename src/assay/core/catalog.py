"""The catalogue: missions are discovered, never registered by hand.

A mission is a package in `assay.missions` with a ``claims`` module, an installed package that names such a
module under the entry point ``assay.missions``, or a theorist's own Python file.  Its claims are the `Claim`
objects at the top level of that module.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from assay.core.claim import Claim, Mission
from assay.core.errors import InputError, UnknownIdError

ENTRY_POINT = "assay.missions"
MISSIONS = "assay.missions"


class Catalog(Mapping[str, Claim]):
    """Claims by id, in order of mission and of appearance; `missions` groups them."""

    def __init__(self, missions: Mapping[str, Mission]) -> None:
        self.missions = dict(missions)
        self._claims = {claim.id: claim for mission in missions.values() for claim in mission.claims}

    def __getitem__(self, claim_id: str) -> Claim:
        try:
            return self._claims[claim_id]
        except KeyError:
            raise UnknownIdError("claim", claim_id, self._claims) from None

    def __contains__(self, claim_id: object) -> bool:
        return claim_id in self._claims

    def __iter__(self) -> Iterator[str]:
        return iter(self._claims)

    def __len__(self) -> int:
        return len(self._claims)


@cache
def catalog() -> Catalog:
    """All missions that are installed.

    >>> "dare.moments" in catalog()
    True
    """
    missions = {}
    package = importlib.import_module(MISSIONS)
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg and not module.name.startswith("_"):
            name = f"{MISSIONS}.{module.name}.claims"
            if importlib.util.find_spec(name) is not None:
                missions[module.name] = mission_of(importlib.import_module(name), module.name)
    for entry in entry_points(group=ENTRY_POINT):
        mission = mission_of(entry.load(), entry.name)
        if mission.id in missions:
            raise InputError(
                f"the mission {mission.id!r} of {entry.value} is already installed under that name"
            )
        missions[mission.id] = mission
    return Catalog(missions)


def mission_of(module: ModuleType, mission_id: str) -> Mission:
    """The mission that a module of claims makes up.

    Raises:
        InputError: it holds no claim, or one whose id names another mission or is given twice.
    """
    claims = [value for value in vars(module).values() if isinstance(value, Claim)]
    if not claims:
        raise InputError(f"{module.__file__} holds no claim: give a Claim(...) a name at its top level")
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise InputError(f"{module.__file__}: two claims have the id {claim.id!r}")
        seen.add(claim.id)
    strangers = sorted({c.mission for c in claims} - {mission_id})
    if strangers:
        raise InputError(
            f"{module.__file__}: the claims of mission {mission_id!r} cannot be called {strangers[0]}.*"
        )
    title, _, summary = (module.__doc__ or mission_id).strip().partition("\n")
    return Mission(mission_id, title.rstrip("."), tuple(claims), summary.strip())


def load_file(path: str | Path) -> Mission:
    """The mission in a theorist's own file; its id is the one that its claims share.

    The file is run: load only what you would run.

    Raises:
        InputError: there is no such file, it does not import, or its claims name several missions.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no file {file}")
    name = f"_assay_file_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{file} does not import: {type(error).__name__}: {error}") from error
    owners = {value.mission for value in vars(module).values() if isinstance(value, Claim)}
    if len(owners) > 1:
        raise InputError(
            f"{file}: its claims name several missions ({', '.join(sorted(owners))}); give them one"
        )
    return mission_of(module, owners.pop() if owners else file.stem)

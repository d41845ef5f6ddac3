"""Replay of a certificate: the named code computes both sides again, and must find the same."""

from __future__ import annotations

from typing import Any

from assay.core import instance as instances
from assay.core.catalog import catalog
from assay.core.certificate import Certificate, certify
from assay.core.errors import InputError, RejectedError, UndecidedError
from assay.core.verdict import Verdict

COMPARED = ("premises", "conclusion", "facts")
"""Fields of a ``claim-instance`` certificate that come from the code alone."""


def replay(certificate: Certificate) -> Verdict:
    """Evaluate the certificate's claim on its instance again.

    Raises:
        RejectedError: the code that the certificate names finds something else, or no such instance exists.
        UndecidedError: the claim is not installed, or its code has another digest and finds something else.
        InputError: the certificate is not of the kind ``claim-instance``.

    >>> from fractions import Fraction
    >>> claim = catalog()["dare.moments"]                                     # doctest: +SKIP
    >>> replay(certify(claim, instance)).truth                                # doctest: +SKIP
    <Truth.TRUE: 'TRUE'>
    """
    document = certificate.document
    if document.get("kind") != "claim-instance":
        raise InputError(f"a certificate of kind {document.get('kind')!r} has nothing to replay")
    claim_id = document["claim"]["id"]
    known = catalog()
    if claim_id not in known:
        raise UndecidedError(
            f"the claim {claim_id} is not installed here, so its sides cannot be computed again"
        )
    claim = known[claim_id]
    try:
        instance: Any = instances.decode(claim.instance, document["instance"])
    except InputError as error:
        raise RejectedError(f"the certificate's instance is none of {claim_id}: {error}") from None
    again = certify(claim, instance, precision=document["precision"], draws=document["draws"])
    for field in COMPARED:
        if again.document[field] != document[field]:
            if again.document["claim"]["code_sha256"] != document["claim"]["code_sha256"]:
                raise UndecidedError(
                    f"the certificate was issued by another version of {claim_id}, and this one finds another {field}"
                )
            raise RejectedError(f"the code of {claim_id} finds another {field} than the certificate states")
    assert again.verdict is not None
    return again.verdict

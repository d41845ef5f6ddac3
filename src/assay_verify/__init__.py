"""An independent checker of assay's certificates and deltas.

Standard library only: nothing of `assay` and nothing third-party is imported (numpy is used as a fast path
for weights where it happens to be installed, and must agree).  The specification is
``docs/reference/certificate-format.md``.
"""

"""The audit: attacks that propose instances, until one refutes the claim or the budget is spent.

The function `assay.audit` lives in `assay.audits.engine`; the room is called `audits` so that the two names do
not clash.
"""

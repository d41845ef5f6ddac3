"""The demonstration: a real fine-tune, packed, certified, unpacked and judged (``make demo``)."""

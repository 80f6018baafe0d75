"""Fingerprints of tensors that are in memory, on whatever device they are."""

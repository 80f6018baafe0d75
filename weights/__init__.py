"""The room that fingerprints: BLAKE3 over tensors, and what those fingerprints say of each other."""

"""The room that decides: types, catalogue, rule packs, verdicts, boundaries and records. It does no I/O."""

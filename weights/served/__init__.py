"""What running engines hold: read in the engine, compared outside of it."""

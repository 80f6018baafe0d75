"""Whether the worker that came up is the one that was approved."""

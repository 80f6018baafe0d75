"""What is asked of a model, and when two answers count as the same."""

"""Asking a running server for completions, and reading what it says of its cache."""

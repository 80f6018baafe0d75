"""Asks running models: what the old deployment stored, and what the new one makes of it."""

"""Marks that tell whose cache an answer came from, and whether one tenant reaches another's."""

"""Strings made from two tokenizers, encoded by both, to find where they part."""

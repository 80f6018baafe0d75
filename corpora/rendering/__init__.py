"""Conversations become text and token ids, with transformers' own code."""

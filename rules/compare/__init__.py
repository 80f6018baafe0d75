"""Comparisons: each turns one dimension's two sides into typed changes. Pure; no rule is applied here."""

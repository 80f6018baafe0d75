"""Asking a running server which token ids it makes of conversations."""

"""The hit that must not happen, staged on purpose."""

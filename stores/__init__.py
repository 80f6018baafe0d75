"""The room that touches caches: the names of stored entries taken apart and foretold, and what lies in a store."""

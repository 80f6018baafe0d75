"""Other releases of transformers and tokenizers, side by side, so that each side of a test speaks with its own."""

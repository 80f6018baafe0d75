"""Real tokenizers and chat templates, fetched by name and version: nothing of them is in this repository."""

"""A deployment without a server: transformers in a child process, its KV in a scratch folder."""

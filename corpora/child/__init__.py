"""The bounded child process in which templates and tokenizer files are touched."""

"""One module for each command. Each imports what it works with inside its function: `--help` stays quick."""

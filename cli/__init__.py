"""The room that speaks: commands, progress, report formats, exit codes, configuration discovery."""

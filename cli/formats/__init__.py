"""One module for each report format: pure functions from a decision record to text."""

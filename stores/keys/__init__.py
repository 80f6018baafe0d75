"""What connectors call the entries they store: names taken apart into what they say, and foretold."""

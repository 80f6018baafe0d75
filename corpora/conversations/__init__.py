"""What is rendered: the diagnostic conversations, and a user's own requests."""

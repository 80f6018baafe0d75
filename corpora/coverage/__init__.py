"""Which branches of chat templates ran on a corpus, and what a changed template may do that no conversation shows."""

"""Which chat template is in force, and what it is apart from its layout."""

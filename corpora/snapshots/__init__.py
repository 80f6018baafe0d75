"""What a renderer made of a corpus, saved, compared, and checked again."""

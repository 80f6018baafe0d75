"""What a tokenizer is: the one that transformers really builds, and in what two of them differ."""

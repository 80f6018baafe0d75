"""What a divergence costs and why it is there: where two renderings part, and what of the old blocks is left."""

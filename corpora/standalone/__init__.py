"""What is printed to be run elsewhere: the snapshot script for serving images."""

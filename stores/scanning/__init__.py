"""What lies in a store, counted by whose it is."""

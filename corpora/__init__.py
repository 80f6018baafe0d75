"""The room that tokenises: diagnostic conversations, rendering, encoding, snapshots, divergence."""

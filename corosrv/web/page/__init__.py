"""The page at `/`, which needs nothing from the network: people chat in it, and see what is served."""

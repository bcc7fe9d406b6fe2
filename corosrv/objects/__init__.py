"""Large values that calls pass to each other by reference, and the store that keeps them."""

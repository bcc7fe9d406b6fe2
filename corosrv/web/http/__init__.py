"""The parts that every protocol over HTTP shares: bodies, keys, streams, health and metrics."""

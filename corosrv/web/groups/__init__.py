"""Groups of requests: several answers to one prompt, which stay together and are aborted together."""

"""The server under one clock and one seed: worlds of clients, servers and faults around the real parts."""

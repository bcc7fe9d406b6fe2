"""Putting a load on a server: what is asked, when, by how many processes, and what became of each request."""

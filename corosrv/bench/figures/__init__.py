"""From outcomes of requests to figures. Pure."""

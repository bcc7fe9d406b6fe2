"""Upstreams: other servers of models, to which calls are forwarded; they may come and go while calls wait."""

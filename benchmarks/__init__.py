"""Figures of corosrv beside its peers: `make bench`. Not part of the package."""

"""Speaks KServe's v2 protocol (the Open Inference Protocol), over REST and gRPC."""

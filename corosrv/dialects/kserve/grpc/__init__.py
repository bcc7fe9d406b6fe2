"""KServe's v2 protocol over gRPC, in a process of its own: `python -m corosrv.dialects.kserve.grpc`.

That process speaks gRPC and knows no model: it asks the server for every call, over one lane. `front` is the server's
side; it imports no grpcio, and nothing else here imports gevent.
"""

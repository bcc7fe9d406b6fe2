"""The worker process of an application: runs its handlers for the server."""

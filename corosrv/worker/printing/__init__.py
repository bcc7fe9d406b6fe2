"""What is printed in the worker process, and whose it is."""

"""A server and its parts: the models, the predictor, and their readiness."""

"""What one process serves: the models, the predictor, and how ready they are together."""

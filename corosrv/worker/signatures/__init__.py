"""What a predictor takes and gives, read from its annotations and described."""

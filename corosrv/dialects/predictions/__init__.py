"""The prediction service: a predictor in a worker process, behind Cog's HTTP interface."""

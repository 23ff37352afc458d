"""`opgate load`: the quick load test of one model."""

"""`opgate tune`: finds the configuration of a model that keeps a latency at the highest rate."""

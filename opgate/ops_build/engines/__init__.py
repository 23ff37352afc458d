"""What an engine is for verification, and how results are compared."""

"""The tutorials' activation as a model."""

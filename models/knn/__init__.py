"""The tutorials' search for neighbours as a model."""

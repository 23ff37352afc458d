"""`opgate export`: from a module of PyTorch to a model in a repository."""

"""Worker processes: a model that runs in one can end it and nothing else."""

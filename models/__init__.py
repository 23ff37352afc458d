"""Where the models of `model_repository/` come from: definitions, training and export."""

"""The sources of the models in `model_repository/`: definitions, training and export."""

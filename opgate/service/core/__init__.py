"""What all other rooms speak of: requests, tensors, models, errors and counts."""

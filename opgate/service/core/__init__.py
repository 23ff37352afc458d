"""Requests, tensors, facts about models, errors and counts: what all other packages of the gateway use."""

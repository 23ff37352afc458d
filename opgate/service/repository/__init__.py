"""Loads models from a folder: config.pbtxt, versions, op libraries."""

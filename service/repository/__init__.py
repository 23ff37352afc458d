"""From a directory to models: config.pbtxt, versions, op libraries."""

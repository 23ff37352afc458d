"""Several gateway processes on one port: a supervisor starts them, and what changes one of them changes all."""

"""Runs a gateway that logs text, but says in JSON where it listens, as tests.system.running expects."""

from __future__ import annotations

import json
import logging
import sys


class Tell(logging.Handler):
    def emit(self, record):
        if record.getMessage() == "listening":
            ports = {key: value for key, value in vars(record).items() if key.endswith("_port")}
            sys.stderr.write(json.dumps({"message": "listening", **ports}) + "\n")


if __name__ == "__main__":
    import os

    from opgate.cli import main

    os.environ["OPGATE_LOG_FORMAT"] = "text"
    logging.getLogger("opgate").addHandler(Tell())
    main()

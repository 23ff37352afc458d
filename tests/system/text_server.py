"""Runs a gateway that logs text, but says in JSON where it listens, as tests.system.running expects."""

from __future__ import annotations

import json
import logging
import sys


class Tell(logging.Handler):
    def emit(self, record):
        if record.getMessage() == "listening":
            ports = {key: value for key, value in vars(record).items() if key.endswith("_port")}
            print(json.dumps({"message": "listening", **ports}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    import os

    from opgate.cli import main

    os.environ["OPGATE_LOG_FORMAT"] = "text"
    logging.getLogger("opgate").addHandler(Tell())
    main()

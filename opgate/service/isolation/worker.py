"""The main program of a worker process: it takes rights away from itself, and then serves the gateway.

`python -m opgate.service.isolation.worker` is started by the gateway with the file descriptors of their connection. It
needs only the standard library until the rights are gone.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from opgate.service.isolation.confinement import Confinement, NotConfinedError, confine
from opgate.service.isolation.keeper import keep


def main(arguments: list[str]) -> None:
    """Serves the gateway until that ends. `arguments` are the Confinement as JSON, the number of the gateway's process,
    the descriptors and sizes of both pieces of shared memory, and the ends of three pipes."""
    confinement = Confinement(**json.loads(arguments[0]))
    gateway, *connection = map(int, arguments[1:])
    counted = keep(gateway, confinement.memory_bytes)
    missing: list[str] = []
    refusal = ""
    try:
        missing = confine(replace(confinement, counted=counted))
    except NotConfinedError as error:
        refusal = f"a worker process can't be confined: {error}"
    from opgate.service.isolation.serving import serve
    from opgate.service.isolation.worker_end import Link

    serve(Link(*connection), refusal, missing, counted)


if __name__ == "__main__":
    main(sys.argv[1:])

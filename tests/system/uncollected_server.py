"""Runs a gateway without Python's collector of cycles. The arguments are those of `opgate serve`."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()
    from opgate.cli import main

    main()

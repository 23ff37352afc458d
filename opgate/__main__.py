"""`python -m opgate`."""

import signal

# The modules take a while to be imported. A Ctrl-C meanwhile ends the process without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from opgate.cli import main  # noqa: E402

signal.signal(signal.SIGINT, signal.default_int_handler)
main()

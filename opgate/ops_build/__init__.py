"""The ops and everything that compiles them."""

if __name__ != "opgate.ops_build":
    raise ImportError(f"import opgate.ops_build, not {__name__}: under two names its modules would be loaded twice")

"""The settings and limits of the gateway. The environment variable of a setting is its name with the prefix OPGATE_."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ByteSize, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from opgate import folders
from opgate.cpu import usable_cores
from opgate.service.client_limits import read_limits
from opgate.service.execution.rate_limiter import read_supplies
from opgate.service.header_forwarding import read_pattern
from opgate.service.telemetry.triton_traces import read_trace_config
from opgate.service.tokens import read_tokens

# A number of bytes as people write it. pydantic alone would take 50% for 50 bytes.
_SIZE = re.compile(r"\d*\.?\d+\s*([kmgtpe](i?b)?|b)?", re.IGNORECASE)
# Fewer bytes are no budget of models, but a number without its unit.
_LEAST_MEMORY = 1 << 16


def _read_size(value: object) -> object:
    if isinstance(value, str) and not _SIZE.fullmatch(value.strip()):
        raise ValueError(f"expected a size such as 16GiB, got '{value}'")
    return value


Size = Annotated[ByteSize, BeforeValidator(_read_size)]

# The address of a server: a name, or an IPv6 address in brackets, and a port.
_ADDRESS = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")


class Flag:
    """The option of `opgate serve` for a setting. One that Triton has too keeps Triton's name."""

    def __init__(self, help: str, *names: str, default: str = "") -> None:
        """Without `names` it is named after the setting. `default` is what the help says about the default, if that is
        not its value."""
        self.help = help
        self.names = names
        self.default = default


# What joins the values of options that may be given several times, and what reads some of them.
_JOINED = {
    "model_repository": ",",
    "load_model": ",",
    "rate_limit_resource": ",",
    "isolation_environment": ",",
    "console_hosts": ",",
    "http_restricted_api": ";",
    "grpc_restricted_protocol": ";",
    "client_limit": ";",
    "trace_config": ";",
}
_READERS: dict[str, Callable[[str], object]] = {
    "rate_limit_resource": read_supplies,
    "http_restricted_api": read_tokens,
    "grpc_restricted_protocol": read_tokens,
    "client_limit": read_limits,
    "trace_config": read_trace_config,
    "http_header_forward_pattern": read_pattern,
    "grpc_header_forward_pattern": read_pattern,
}


class Settings(BaseSettings):
    """The settings of a gateway. A value comes from an argument, else from an OPGATE_* variable, else the default.

    It is long, because it is the one list of all settings.
    """

    model_config = SettingsConfigDict(env_prefix="OPGATE_", extra="ignore", protected_namespaces=())

    model_repository: Annotated[
        str | Path,
        Flag(
            "A folder of models. May be given several times.",
            "--model-repository",
            "--model-store",
            default="./model_repository",
        ),
    ] = Path("model_repository")  # folders of models, several joined by commas
    # none: what the repositories have at the start is served. poll: changes are noticed. explicit: clients load and
    # unload models, and at the start those of `load_model` are loaded, joined by commas; * stands for all.
    model_control_mode: Annotated[
        Literal["none", "poll", "explicit"],
        Flag("none, poll (changed files are noticed) or explicit (clients load and unload models)."),
    ] = "none"
    repository_poll_secs: Annotated[float, Flag("Seconds between two looks at the files.")] = Field(default=15.0, gt=0)
    load_model: Annotated[
        str, Flag("A model to load at the start in the mode explicit, * for all. May be given several times.")
    ] = ""
    http_host: Annotated[str, Flag("Address of HTTP.", "--http-host", "--http-address")] = "127.0.0.1"
    http_port: Annotated[int, Flag("Port of HTTP. 0 picks a free port.")] = Field(default=8000, ge=0, le=65535)
    grpc_host: Annotated[
        str | None, Flag("Address of gRPC.", "--grpc-host", "--grpc-address", default="the address of HTTP")
    ] = None  # None: the same as http_host
    grpc_port: Annotated[int, Flag("Port of gRPC. 0 picks a free port.")] = Field(default=8001, ge=0, le=65535)
    http: Annotated[bool, Flag("Serve HTTP.", "--allow-http/--no-http")] = True
    grpc: Annotated[bool, Flag("Serve gRPC.", "--allow-grpc/--no-grpc")] = True
    # Files in PEM. With the first two of a protocol it is served with TLS, with the third only to clients with a
    # certificate of that authority. First those of gRPC, then those of HTTP.
    grpc_tls_certificate: Annotated[Path | None, Flag("Certificate of gRPC, in PEM.", "--grpc-server-cert")] = None
    grpc_tls_key: Annotated[Path | None, Flag("Its key, in PEM.", "--grpc-server-key")] = None
    grpc_tls_client_ca: Annotated[
        Path | None, Flag("Authority of the clients of gRPC: they need a certificate.", "--grpc-root-cert")
    ] = None
    ssl_certfile: Annotated[Path | None, Flag("Certificate of HTTP, in PEM.")] = None
    ssl_keyfile: Annotated[Path | None, Flag("Its key, in PEM.")] = None
    ssl_ca_certs: Annotated[Path | None, Flag("Authority of the clients of HTTP: they need a certificate.")] = None
    ssl_keyfile_password: Annotated[str | None, Flag("The password of the key.")] = None
    ssl_ciphers: Annotated[str | None, Flag("Ciphers of HTTP, as OpenSSL names them.")] = None
    # Groups of endpoints that need a token: "<group>,<group>:<key>=<value>", joined by semicolons.
    http_restricted_api: Annotated[
        str, Flag("GROUP,GROUP:HEADER=VALUE: these endpoints need the header. May be given several times.")
    ] = ""
    grpc_restricted_protocol: Annotated[
        str, Flag("The same for gRPC, where the header is triton-grpc-protocol-HEADER.")
    ] = ""
    # Requests that a client may send in a second, see client_limits.py.
    client_limit: Annotated[
        str,
        Flag(
            "NAME:HEADER=VALUE:RATE: the client with this header may send so many requests a second. *:RATE: so may "
            "each other address. May be given several times."
        ),
    ] = ""
    # Headers that models in Python find among the parameters of a request.
    http_header_forward_pattern: Annotated[
        str, Flag("Headers whose names match this regular expression become parameters of requests.")
    ] = ""
    grpc_header_forward_pattern: Annotated[str, Flag("The same for the metadata of gRPC.")] = ""

    # What runs the models: ONNX Runtime in this process, or Triton servers. `triton_url` has their addresses of gRPC,
    # joined by commas.
    backend: Annotated[Literal["onnxruntime", "triton"], Flag("onnxruntime in this process, or triton.")] = (
        "onnxruntime"
    )
    triton_url: Annotated[str, Flag("Triton servers: HOST:PORT of gRPC, joined by commas.")] = "127.0.0.1:8011"
    triton_start_timeout: float = Field(default=60.0, ge=0)  # seconds in which one of them must answer

    # Folders, joined by the path separator of the system. Their manifest.json lists op libraries to trust.
    ops_path: str = ""
    trusted_signers: Annotated[
        Path | None,
        Flag("A folder of public keys, *.pem. Then manifests on OPGATE_OPS_PATH must be signed with one of them."),
    ] = None
    build_ops: Path = Field(default_factory=lambda: folders.builds() / "ops")
    # The console shows requests without what they hold, unless `console_bodies` is set.
    console: Annotated[bool, Flag("Serve the console, a page for the browser, at /.", "--console/--no-console")] = True
    console_hosts: Annotated[
        str, Flag("A name of this machine under which browsers open the console. May be given several times.")
    ] = ""
    console_bodies: Annotated[
        bool,
        Flag("Let the console show the beginnings of inputs and outputs.", "--console-bodies/--no-console-bodies"),
    ] = False
    shared_memory: Annotated[bool, Flag("Let clients of this machine pass tensors in system shared memory.")] = (
        True  # clients may register system shared memory, see docs/gateway.md
    )
    strict_readiness: Annotated[bool, Flag("Answer that the server is not ready while a model is unavailable.")] = (
        True  # /v2/health/ready is 400 while a model of the repository is unavailable
    )

    max_body_bytes: Annotated[int, Flag("Largest request body in bytes.", default="256 MiB")] = Field(
        default=256 * 1024 * 1024, gt=0
    )
    max_decompressed_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    # Bytes of the requests that come or are under way, of packed ones as unpacked, of their inputs in shared memory,
    # and of answers that nobody has taken.
    max_held_bytes: int = Field(default=2 * 1024 * 1024 * 1024, gt=0)
    max_rank: int = Field(default=16, gt=0)
    max_elements: int = Field(default=256 * 1024 * 1024, gt=0)
    # Elements of a BYTES tensor. Each is an object that ONNX Runtime copies while nothing else of Python can run.
    max_strings: int = Field(default=128 * 1024, gt=0)
    max_tensors: int = Field(default=256, gt=0)  # inputs of one request, and outputs of one request
    max_json_bytes: int = Field(default=64 * 1024 * 1024, gt=0)  # JSON of one request; binary tensors don't count
    max_json_depth: int = Field(default=32, gt=0)
    max_string_bytes: int = Field(default=16 * 1024 * 1024, gt=0)  # one element of a BYTES tensor
    max_queue_size: Annotated[int, Flag("Requests that may wait for one model.")] = Field(default=1024, gt=0)
    max_concurrent_requests: int = Field(default=8192, gt=0)  # requests under way in the process, for all models
    max_grpc_calls: int = Field(default=10_000, gt=0)  # of one connection at once
    max_shared_memory_regions: int = Field(default=1024, gt=0)  # registered, or unregistered but still in use
    max_header_bytes: int = Field(default=64 * 1024, gt=0)
    body_timeout: float = Field(default=60.0, gt=0)  # seconds without a byte of a promised body
    write_timeout: float = Field(default=60.0, gt=0)  # seconds in which a client takes nothing of an answer
    # Bytes of results that are kept for models with `response_cache`.
    response_cache_byte_size: Annotated[
        int, Flag("Bytes of results that are kept for models with response_cache.", default="64 MiB")
    ] = Field(default=64 * 1024 * 1024, ge=0)
    retry_after: int = Field(default=1, ge=1)  # seconds, in the header Retry-After of status 503

    keep_alive_timeout: int = Field(default=75, ge=1)  # seconds until an idle connection is closed
    shutdown_timeout: Annotated[
        float, Flag("Seconds to finish accepted requests after SIGTERM.", "--exit-timeout-secs")
    ] = Field(default=30.0, ge=0)  # seconds to finish the accepted requests
    shutdown_grace: float = Field(default=1.0, ge=0)  # the first of these seconds, in which new requests are answered
    # Gateway processes on one port. Each has its share of the cores, and of the limits in bytes on all requests.
    workers: Annotated[int, Flag("Gateway processes that share the port, the cores and the memory.")] = Field(
        default=1, ge=1, le=256
    )
    # Threads of a session; 0: usable cores divided by processes and instances.
    intra_op_threads: int = Field(default=0, ge=0)
    # A run that costs less than handing it to a thread happens on the event loop, unless it costs more than this. Where
    # the process may use only one core it is five times as much.
    inline_limit_us: float = Field(default=100.0, ge=0)
    # Seconds. A model whose run takes longer is not ready. With Triton, a call may take so long, its queue included.
    run_timeout: float = Field(default=60.0, gt=0)
    # Seconds in which a worker process must have opened its model. TensorRT takes minutes to build an engine.
    start_timeout: float = Field(default=1200.0, gt=0)
    # Where models run: in this process, or each instance in a worker process of its own, which a crash ends alone. What
    # worker processes may do: the bytes that one may allocate (0: no limit), sockets of a network, and writing files.
    isolation: Annotated[
        Literal["none", "process"],
        Flag("process: each instance of a model has a worker process, and a crash ends only that. Or none."),
    ] = "none"
    allow_python_models: Annotated[
        bool,
        Flag(
            'Serve models with backend "python", which run their model.py.', "--allow-python-models/--no-python-models"
        ),
    ] = False
    allow_python_ops: Annotated[
        bool,
        Flag(
            "Serve models with ops that are functions in Python, in worker processes.",
            "--allow-python-ops/--no-python-ops",
        ),
    ] = False
    python_error_lines: Annotated[
        bool, Flag("Tell clients which lines of a model.py an error came through, or not.")
    ] = True
    isolation_memory_bytes: Annotated[int, Flag("Bytes that a worker process may allocate. 0 is no limit.")] = Field(
        default=0, ge=0
    )
    isolation_network: Annotated[bool, Flag("Let worker processes use networks.")] = True
    isolation_writes: Annotated[bool, Flag("Let worker processes write files.")] = True
    # Bytes of the tensors of a run in a worker process, and names of the variables that it gets of the environment,
    # with * and ?, joined by commas. A confined worker gets no others but those of isolation/process.py.
    max_worker_bytes: int = Field(default=4 * 1024 * 1024 * 1024, ge=1 << 20)
    isolation_environment: Annotated[
        str, Flag("A variable of the environment that worker processes get; * and ? stand for others. Repeatable.")
    ] = ""
    # Whether instances run only while the resources of their `rate_limiter` are free, and how many copies there are of
    # a resource: name:count or name:count:device, joined by commas. Without that, as many as the instance wants that
    # wants the most.
    rate_limit: Annotated[
        Literal["off", "execution_count", "fair"],
        Flag(
            "execution_count: instances run while their resources are free. fair: models share the cores too, by their "
            "parameter share. Or off. Both count in one process: not with --workers."
        ),
    ] = "off"
    rate_limit_resource: Annotated[
        str, Flag("Copies of a resource: name:count or name:count:device. May be given several times.")
    ] = ""
    # Models that are loaded on demand make room for each other so that all take no more than this. 0 is no limit.
    model_memory: Annotated[
        Size,
        Flag(
            "Memory of models, such as 16GiB: each is loaded when it is asked for, and they make room for each other."
        ),
    ] = ByteSize(0)
    # Large model files are prepared: the optimized graph and the packed weights are kept in a folder, see
    # execution/prepared.py.
    model_cache: Annotated[Path, Flag("Folder of the cache of prepared models.", default="in the user's cache")] = (
        Field(default_factory=folders.prepared_models)
    )
    model_cache_byte_size: Annotated[
        Size, Flag("Bytes of prepared models that are kept. With 0 none is prepared.", default="16GiB")
    ] = ByteSize(16 << 30)
    model_load_thread_count: Annotated[
        int, Flag("Models that are loaded side by side.", default="the cores, from 2 to 8")
    ] = Field(default_factory=lambda: min(max(2, usable_cores()), 8), ge=1, le=256)
    default_max_batch_size: int = Field(default=4, ge=0)  # for models without a config whose first dim is a batch

    log_level: Annotated[str, Flag("debug, info, warning or error.")] = Field(
        default="info", pattern="(?i)^(debug|info|warning|error|critical)$"
    )
    log_format: Annotated[Literal["json", "text"], Flag("json or text.")] = "json"
    access_log: Annotated[bool, Flag("Log requests.")] = False
    trace_config: Annotated[
        str, Flag("level=TIMESTAMPS, rate=100, count=50, file=/tmp/t.json, mode=triton. May be given several times.")
    ] = ""  # which requests are traced, as Triton's option says it: "rate=100", joined by semicolons
    tracing: bool = False  # traces for OpenTelemetry, which the variables OTEL_* describe; needs opgate[otel]

    @field_validator("triton_url")
    @classmethod
    def _check_addresses(cls, value: str) -> str:
        parts = [part.strip() for part in value.split(",")]
        if not all(_ADDRESS.fullmatch(part) for part in parts):
            raise ValueError("expected HOST:PORT of gRPC, several joined by commas")
        return ",".join(dict.fromkeys(parts))

    @field_validator(*_JOINED, mode="before")
    @classmethod
    def _join(cls, value: str | Path | Sequence[str], info: ValidationInfo) -> str | Path:
        """The option of the command line may be given several times."""
        return value if isinstance(value, (str, Path)) else _JOINED[info.field_name or ""].join(value)

    @field_validator(*_READERS)
    @classmethod
    def _check(cls, value: str, info: ValidationInfo) -> str:
        _READERS[info.field_name or ""](value)
        return value

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.load_model and self.model_control_mode != "explicit":
            raise ValueError("--load-model (OPGATE_LOAD_MODEL) needs --model-control-mode explicit")
        return self

    @field_validator("model_memory")
    @classmethod
    def _check_memory(cls, value: ByteSize) -> ByteSize:
        if 0 < value < _LEAST_MEMORY:
            raise ValueError(f"expected 0, or a size such as 16GiB, got {int(value)} bytes")
        return value

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers == 1:
            return self
        alone = f"expected --workers 1 (OPGATE_WORKERS), got {self.workers}"
        if self.rate_limit != "off":
            raise ValueError(f"--rate-limit {self.rate_limit} counts the resources of one process: {alone}")
        if self.client_limit:
            raise ValueError(f"--client-limit counts the requests that one process gets: {alone}")
        if read_trace_config(self.trace_config).file:
            raise ValueError(f"--trace-config file=... is a file that one process writes: {alone}")
        return self

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Returns the options of the settings that have one."""
        return {name: flag for name in cls.model_fields if (flag := cls._flag(name)) is not None}

    @classmethod
    def _flag(cls, name: str) -> Flag | None:
        return next((item for item in cls.model_fields[name].metadata if isinstance(item, Flag)), None)

    @classmethod
    def option(cls, name: str) -> str:
        """Returns the option of a setting, as one types it."""
        flag = cls._flag(name)
        given = flag.names[0] if flag is not None and flag.names else f"--{name.replace('_', '-')}"
        return given.partition("/")[0]

    @classmethod
    def is_joined(cls, name: str) -> bool:
        """Returns whether the option of a setting may be given several times."""
        return name in _JOINED

    @classmethod
    def variable(cls, name: str) -> str:
        """Returns the environment variable of a setting."""
        return f"OPGATE_{name.upper()}"

    def repositories(self) -> list[str]:
        """Returns the folders and addresses of the model repositories."""
        return [part.strip() for part in str(self.model_repository).split(",") if part.strip()]

    def repository(self) -> Path:
        """Returns the only folder of models. Raises ValueError if there are several, or if it is in an object store."""
        locations = self.repositories()
        if len(locations) != 1 or "://" in locations[0]:
            raise ValueError(f"expected one folder as model repository, got {self.model_repository}")
        return Path(locations[0])

    def models_to_load(self) -> list[str]:
        """Returns the names of the models to load at the start in the mode "explicit"."""
        return [part.strip() for part in self.load_model.split(",") if part.strip()]

    def named_directories(self) -> list[Path]:
        """Returns the folders of op libraries that the operator has named."""
        import os

        return [Path(part) for part in self.ops_path.split(os.pathsep) if part]

    def trusted_directories(self) -> list[Path]:
        """Returns the folders whose manifests are trusted, in the order in which op libraries are looked for: those
        that the operator has named, and then opgate's own. See `op_libraries.trusted_folders`."""
        shipped = [folders.SHIPPED_OPS] if folders.SHIPPED_OPS.is_dir() else []
        return [*self.named_directories(), self.build_ops, *shipped]


def smallest(settings: Settings, *names: str) -> tuple[int, str]:
    """Returns the smallest of these limits, and its environment variable."""
    return min((getattr(settings, name), Settings.variable(name)) for name in names)


def misspelt(environment: Iterable[str]) -> list[tuple[str, str]]:
    """Returns the variables that are almost those of a setting, each with the one that was probably meant."""
    known = {Settings.variable(name) for name in Settings.model_fields}
    # Those that are named after an option whose setting has another name.
    options = {Settings.variable(Settings.option(name)[2:].replace("-", "_")): name for name in Settings.flags()}
    options = {named: Settings.variable(name) for named, name in options.items() if named not in known}
    found = []
    for name in environment:
        if name.upper() not in known and name.upper().startswith("OPGATE_"):
            close = difflib.get_close_matches(name.upper(), [*known, *options], 1, 0.85)
            found += [(name, options.get(meant, meant)) for meant in close]
    return found

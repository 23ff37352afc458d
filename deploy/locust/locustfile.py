"""Load tests of the gateway. README.md beside this file says how to run them."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from arrivals import Tally
from locust import LoadTestShape, events
from locust.argument_parser import LocustArgumentParser, gt_zero
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner
from pictures import read_pictures
from shapes import SHAPES, users_at
from thresholds import Measured, Thresholds
from users import BinaryUser, GrpcUser, JsonUser, LoadUser, PictureUser

__all__ = ["BinaryUser", "GrpcUser", "JsonUser", "PictureUser", "Shape"]  # locust takes the classes from here

log = logging.getLogger("opgate")


def fraction(text: str) -> float:
    """Returns a number from 0 to 1. Raises argparse.ArgumentTypeError if the text is none."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser, **_: Any) -> None:
    picture = Path(__file__).parent / "../../docs/examples/digits.jpg"
    number = gt_zero(float)
    parser.set_defaults(run_time="60s")
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="constant", help="How the number of users changes. Default: constant.")
    add("--shape-steps", type=gt_zero(int), default=5, help="Number of steps of --shape step. Default: 5.")
    add(
        "--arrival-rate",
        type=number,
        default=0.0,
        help="Open loop: requests a second that are due while all users run. Default: closed loop, no pauses.",
    )
    add("--request-timeout", type=number, default=30.0, help="Seconds until a request has failed. Default: 30.")
    add("--grpc-host", default="", help="HOST:PORT of gRPC. Default: port 8001 of the host of --host.")
    add(
        "--picture",
        default=str(picture),
        env_var="OPGATE_PICTURE",
        include_in_web_ui=False,
        help="Picture for PictureUser; its .json file lists the objects. Default: docs/examples/digits.jpg.",
    )
    limit = {"include_in_web_ui": False, "default": None}
    add("--max-p50-ms", type=number, **limit, help="Fail if the median of all response times is longer.")
    add("--max-p99-ms", type=number, **limit, help="Fail if the 99th percentile of all response times is longer.")
    add("--min-rps", type=number, **limit, help="Fail if there were fewer requests a second.")
    add(
        "--max-error-rate",
        type=fraction,
        default=0.0,
        include_in_web_ui=False,
        help="Fail if a larger fraction of the requests failed. Default: 0.",
    )


class Shape(LoadTestShape):
    """Follows --shape until --run-time is over. The users then get their last answers before they stop."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        users, seconds = options.num_users or 1, self.get_run_time()
        if seconds < options.run_time:
            return users_at(options.shape, seconds, options.run_time, users, options.shape_steps), users
        # Locust's master waits for its workers for half a second only, so it must stop the users before.
        if isinstance(self.runner, MasterRunner) and self.get_current_user_count():
            return 0, users
        return None


@events.init.add_listener
def read_the_picture(environment: Environment, **_: Any) -> None:
    if PictureUser in environment.user_classes:
        path = environment.parsed_options.picture
        try:
            PictureUser.pictures = read_pictures(Path(path))
        except (OSError, ValueError, LookupError) as error:
            sys.exit(f"--picture {path}: {error}")


@events.init.add_listener
def collect_from_workers(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        environment.events.report_to_master.add_listener(lambda data, **_: data.update(tally=LoadUser.tally.take()))
    else:
        environment.events.worker_report.add_listener(lambda data, **_: LoadUser.tally.add(Tally(**data["tally"])))


@events.test_start.add_listener
def begin(environment: Environment, **_: Any) -> None:
    LoadUser.tally.take()
    options = environment.parsed_options
    if not isinstance(environment.runner, WorkerRunner):  # a worker gets these values from the master
        options.user_arrival_rate = options.arrival_rate / (options.num_users or 1)
        environment.stop_timeout = options.stop_timeout or options.request_timeout + 1


@events.quitting.add_listener
def judge(environment: Environment, **_: Any) -> None:
    """Sets the exit status by the thresholds. Prints the verdict after locust's tables."""
    if isinstance(environment.runner, WorkerRunner):
        return
    options, stats = environment.parsed_options, environment.stats
    total = stats.total
    measured = Measured(
        requests=total.num_requests,
        failures=total.num_failures,
        p50_ms=total.get_response_time_percentile(0.5),
        p99_ms=total.get_response_time_percentile(0.99),
        rps=total.total_rps,
    )
    limits = Thresholds(options.max_p50_ms, options.max_p99_ms, options.max_error_rate, options.min_rps)
    violations = list(limits.violations(measured))
    if violations:
        environment.process_exit_code = 1
    elif measured.failures and not environment.runner.exceptions:
        environment.process_exit_code = 0

    def verdict(**_: Any) -> None:
        if options.arrival_rate:
            log.info(LoadUser.tally)
        for line in violations:
            log.error("threshold violated: %s", line)

    environment.events.quit.add_listener(verdict)

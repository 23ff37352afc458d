"""The parts of the load tests that need no server: shapes, arrivals, thresholds, pictures."""

from __future__ import annotations

import importlib.util
import io
import random
import sys

import numpy as np
import pytest
from PIL import Image

from tests.system.running import ROOT

FOLDER = ROOT / "deploy" / "locust"
DIGITS = ROOT / "docs" / "examples" / "digits.jpg"


def module(name: str):
    """Imports a module of the load tests. Those that import locust are not for this: they change this whole process."""
    spec = importlib.util.spec_from_file_location(f"load_test_{name}", FOLDER / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


arrivals, pictures, shapes, thresholds = map(module, ("arrivals", "pictures", "shapes", "thresholds"))


class TestShapes:
    @pytest.mark.parametrize(
        ("shape", "expected"),
        [
            ("constant", [50, 50, 50, 50, 50, 50, 50]),
            ("ramp", [1, 5, 13, 23, 25, 38, 50]),
            ("step", [10, 10, 20, 30, 30, 40, 50]),
            ("spike", [5, 5, 5, 50, 50, 5, 5]),
            ("soak", [1, 50, 50, 50, 50, 50, 1]),
        ],
    )
    def test_users_at(self, shape, expected):
        at = [0, 10, 25, 45, 50, 75, 99.9]
        assert [shapes.users_at(shape, seconds, 100, 50, 5) for seconds in at] == expected

    def test_soak_ramps_for_a_minute_at_most(self):
        users = [shapes.users_at("soak", seconds, 36000, 60, 5) for seconds in (30, 60, 18000, 35940, 35970)]
        assert users == [30, 60, 60, 60, 30]

    @pytest.mark.parametrize("shape", shapes.SHAPES)
    def test_there_is_always_a_user_and_never_one_too_many(self, shape):
        for users in (1, 2, 7, 100):
            counts = {shapes.users_at(shape, 60 * k / 997, 60, users, 3) for k in range(997)}
            assert min(counts) >= 1
            assert max(counts) == users

    def test_an_unknown_shape_is_refused(self):
        with pytest.raises(ValueError, match="expected one of constant, ramp, step, spike, soak, got 'wave'"):
            shapes.users_at("wave", 0, 60, 1, 5)


class TestArrivals:
    def test_times_between_requests_are_exponentially_distributed(self):
        random.seed(3)
        process, due = arrivals.Arrivals(50, 0.0), []
        for _ in range(20000):
            due.append(process.wait(0.0))
            process.start(due[-1])
        gaps = np.diff(due)
        assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
        assert np.std(gaps) == pytest.approx(1 / 50, rel=0.05)
        assert np.mean(gaps < np.log(2) / 50) == pytest.approx(0.5, abs=0.02)

    def test_late_answers_change_no_due_time_and_are_told(self):
        def lateness(delay: float) -> list[float]:
            random.seed(4)
            process, now, late = arrivals.Arrivals(10, 0.0), 0.0, []
            for _ in range(200):
                now += process.wait(now)
                late.append((process.start(now), now))
                now += delay
            return late

        due = [now - late for late, now in lateness(0.0)]
        slow = lateness(0.5)  # takes requests of 0.5 s, so five times what the rate allows
        assert [now - late for late, now in slow] == pytest.approx(due)
        assert slow[-1][0] == pytest.approx(199 * 0.5 - (due[-1] - due[0]))

    def test_requests_that_were_never_started_are_counted(self):
        random.seed(5)
        process = arrivals.Arrivals(10, 0.0)
        dropped = process.drop(100.0)
        assert dropped == pytest.approx(1000, rel=0.15)
        assert process.drop(100.0) == 0
        assert process.wait(100.0) > 0

    def test_tallies_add_up(self):
        tally, other = arrivals.Tally(), arrivals.Tally(1, 1, 7)
        for late in (0.0, 0.009, 0.5):
            tally.start(late)
        tally.add(other)
        assert str(tally) == (
            "open loop: 4 requests started, 50.0% of them more than 10 ms late; "
            "7 were due and not started when their users stopped"
        )
        assert tally.take() == {"started": 4, "late": 2, "dropped": 7}
        assert tally == arrivals.Tally()


class TestThresholds:
    MEASURED = thresholds.Measured(requests=200, failures=1, p50_ms=20, p99_ms=150, rps=99.5)

    def test_a_run_that_keeps_them(self):
        limits = thresholds.Thresholds(max_p50_ms=20, max_p99_ms=150, max_error_rate=0.005, min_rps=99.5)
        assert list(limits.violations(self.MEASURED)) == []

    def test_each_violation_has_a_line(self):
        limits = thresholds.Thresholds(max_p50_ms=19.5, max_p99_ms=149, max_error_rate=0, min_rps=100)
        assert list(limits.violations(self.MEASURED)) == [
            "--max-p50-ms: expected at most 19.5 ms, measured 20 ms",
            "--max-p99-ms: expected at most 149 ms, measured 150 ms",
            "--max-error-rate: expected at most 0, measured 0.005: 1 of 200 requests failed",
            "--min-rps: expected at least 100 requests a second, measured 99.5",
        ]

    def test_a_run_without_a_request_fails(self):
        limits = thresholds.Thresholds(None, None, 1, None)
        measured = thresholds.Measured(requests=0, failures=0, p50_ms=0, p99_ms=0, rps=0)
        assert list(limits.violations(measured)) == ["expected at least one request, measured none"]


class TestPictures:
    PICTURE = pictures.Picture("small", b"", (("7", (0, 0, 10, 10)), ("7", (20, 0, 30, 10)), ("2", (40, 0, 50, 10))))
    RIGHT = (("7", 0, 0.9), ("7", 21, 0.9), ("2", 40, 0.6))

    @pytest.mark.parametrize(
        ("found", "problem"),
        [
            (RIGHT, None),
            ((*RIGHT, ("5", 80, 0.3)), None),
            ((*RIGHT, ("5", 80, 0.8)), "found a 5 that is not there"),
            ((*RIGHT, ("7", 1, 0.8)), "found a 7 that is not there"),
            (RIGHT[1:], "the 7 at 0, 0, 10, 10 was not found"),
            ((*RIGHT[:2], ("2", 40, 0.4)), "the 2 at 40, 0, 50, 10 was not found"),
            ((*RIGHT[:2], ("3", 40, 0.9)), "the 2 at 40, 0, 50, 10 was not found"),
            ((*RIGHT[:2], ("2", 46, 0.9)), "the 2 at 40, 0, 50, 10 was not found"),
        ],
    )
    def test_problem(self, found, problem):
        predictions = [{"label": label, "box": [x, 0, x + 10, 10], "score": score} for label, x, score in found]
        assert self.PICTURE.problem(predictions) == problem

    def test_sizes(self):
        made = pictures.read_pictures(DIGITS)
        assert [picture.size for picture in made] == ["small", "middle", "large"]
        for picture, side in zip(made, pictures.SIDES.values(), strict=True):
            image = Image.open(io.BytesIO(picture.jpeg))
            assert (image.format, image.width) == ("JPEG", side)
            assert len(picture.objects) == 8
            assert max(box[2] for _, box in picture.objects) == pytest.approx(side * 883 / 960)

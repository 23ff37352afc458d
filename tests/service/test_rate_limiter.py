"""The rate limiter: who may run, in which proportion, and that nothing is lost or locked."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.service.core.errors import ServingError
from opgate.service.core.request import run
from opgate.service.execution.rate_limiter import CORE, Demand, RateLimiter, Resource, Supply, read_supplies
from opgate.service.repository.devices import demands, place
from opgate.service.settings import Settings
from tests.conftest import examples
from tests.service.onnx_models import batching, double, slow
from tests.service.scheduling import ENDLESS, Clients, request, until

R, G = Resource("r", 0), Resource("g", None)


def demand(priority=1, **counts):
    return Demand({Resource(name, 0): count for name, count in counts.items()}, priority)


class TestClaims:
    def test_there_is_as_much_as_the_largest_demand(self):
        limiter = RateLimiter()
        large, small, other = limiter.add([demand(r=4), demand(r=1), demand(r=3)])
        assert small.take() and other.take()
        assert not large.take()
        small.give_back(0)
        assert not large.take()
        other.give_back(0)
        assert large.take()
        assert not small.take()

    def test_the_operator_may_say_how_much_there_is(self):
        limiter = RateLimiter([Supply("r", 5, None)])
        first, second, third = limiter.add([demand(r=2)] * 3)
        assert first.take() and second.take() and not third.take()

    def test_devices_have_their_own_unless_it_is_global(self):
        limiter = RateLimiter()
        on_0, on_1 = limiter.add([Demand({Resource("r", 0): 1}), Demand({Resource("r", 1): 1})])
        assert on_0.take() and on_1.take()
        first, second = limiter.add([Demand({G: 1}), Demand({G: 1})])
        assert first.take() and not second.take()

    @pytest.mark.parametrize(
        ("supplies", "limits"),
        [
            ("r:3", {R: 3, Resource("r", 1): 3, G: 2}),
            ("r:3:0,r:5:1", {R: 3, Resource("r", 1): 5, G: 2}),
            ("r:3,R:7:1", {R: 3, Resource("r", 1): 7, G: 2}),
            ("g:9:4", {R: 1, Resource("r", 1): 1, G: 9}),
            ("", {R: 1, Resource("r", 1): 1, G: 2}),
        ],
    )
    def test_supplies_are_for_a_device_or_for_each(self, supplies, limits):
        limiter = RateLimiter(read_supplies(supplies))
        limiter.add([Demand({R: 1}), Demand({Resource("r", 1): 1}), Demand({G: 2})])
        assert limiter._limits == limits

    @pytest.mark.parametrize("text", ["r", "r:", ":3", "r:x", "r:1:2:3", "r:-1", "r:1:a", "r:1,,s"])
    def test_a_supply_that_is_no_number_is_refused(self, text):
        with pytest.raises(ValueError, match="is not <resource>:<count>"):
            read_supplies(text)
        with pytest.raises(ValueError, match="is not <resource>:<count>"):
            Settings(rate_limit_resource=text)

    def test_what_could_never_run_is_refused_and_leaves_nothing(self):
        limiter = RateLimiter([Supply("r", 2, None)])
        with pytest.raises(ServingError, match=r"'r': the instance needs 3, --rate-limit-resource .* provides 2"):
            limiter.add([demand(r=1), demand(r=3)])
        (claim,) = limiter.add([demand(r=2)])
        with pytest.raises(ServingError, match="'r': some instances ask for it as global, and some as a resource of"):
            limiter.add([Demand({Resource("r", None): 1})])
        assert limiter._claims == [claim] and claim.take()

    def test_what_a_model_brought_goes_with_it(self):
        limiter = RateLimiter()
        (large,) = limiter.add([demand(r=4)])
        first, second = limiter.add([demand(r=2)] * 2)
        assert first.take() and second.take()
        first.give_back(0)
        large.remove()
        assert not first.take()
        second.give_back(0)
        assert first.take() and limiter._limits == {R: 2}

    def test_the_next_one_is_told(self):
        limiter = RateLimiter()
        first, second = limiter.add([demand(r=1)] * 2)
        told = []
        second.wake = lambda: told.append("second")
        assert first.take() and not second.take()
        first.give_back(0)
        assert told == ["second"]

    def test_one_that_withdraws_lets_the_next_one_go(self):
        limiter = RateLimiter()
        first, second, third = limiter.add([demand(r=1)] * 3)
        told = []
        third.wake = lambda: told.append("third")
        assert first.take() and not second.take() and not third.take()
        first.give_back(0)
        assert not third.take()  # it is the turn of the second
        second.withdraw()
        assert told == ["third"] and third.take()

    def test_a_large_demand_is_not_overtaken_for_ever(self):
        limiter = RateLimiter()
        large, *small = limiter.add([demand(r=4), *[demand(r=1)] * 8])
        running = [claim for claim in small[:4] if claim.take()]
        assert len(running) == 4 and not large.take()
        for claim in small[4:]:
            assert not claim.take()
        for i, claim in enumerate(running):
            claim.give_back(0)
            assert large.take() == (i == 3)

    def test_what_needs_other_resources_goes_past_it(self):
        limiter = RateLimiter()
        first, second, other, none = limiter.add([demand(r=1), demand(r=1), demand(s=1), demand()])
        assert first.take() and not second.take()
        assert other.take() and none.take()

    @pytest.mark.parametrize("priorities", [(1, 1), (1, 2), (2, 4), (1, 2, 4), (3, 1)])
    def test_turns_are_shared_by_priority(self, priorities):
        """An instance with priority 2 gets half as many as one with priority 1."""
        limiter = RateLimiter()
        claims = limiter.add([demand(priority, r=1) for priority in priorities])
        turns = Counter()
        (running,) = [claim for claim in claims if claim.take()]
        for _ in range(840):
            turns[claims.index(running)] += 1
            running.give_back(0)
            # The instance that has ended its run asks first.
            (running,) = [claim for claim in (running, *claims) if claim.take()]
        shares = [turns[i] * priority for i, priority in enumerate(priorities)]
        assert max(shares) - min(shares) <= 2 * max(priorities)

    def test_an_instance_that_had_nothing_to_do_can_not_catch_up(self):
        limiter = RateLimiter()
        busy, idle = limiter.add([demand(r=1)] * 2)
        for _ in range(1000):
            assert busy.take()
            busy.give_back(0)
        assert busy.take() and not idle.take()
        running, turns = busy, []
        for _ in range(10):
            running.give_back(0)
            running = running if running.take() else next(claim for claim in (busy, idle) if claim.take())
            turns.append(running is busy)
        assert 4 <= sum(turns) <= 6

    @settings(max_examples=examples(200), deadline=None)
    @given(st.data())
    def test_nothing_is_locked_and_nothing_is_used_twice(self, data):
        """Instances want to run, run, give up, and leave. Whoever is told tries."""
        limiter = RateLimiter(data.draw(st.sampled_from([(), (Supply("a", 5, None),)])))
        counts = st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), max_size=2)
        wants = data.draw(st.lists(st.tuples(counts, st.integers(1, 3)), min_size=1, max_size=6))
        claims = limiter.add([demand(priority, **found) for found, priority in wants])
        told, running, waiting = [], set(), set()
        for claim in claims:
            claim.wake = lambda claim=claim: told.append(claim)

        def attempt(claim):
            if claim.take():
                waiting.discard(claim)
                running.add(claim)
            else:
                waiting.add(claim)

        def settle():
            while told:
                claim = told.pop(0)
                if claim in waiting:
                    attempt(claim)

        for _ in range(data.draw(st.integers(0, 60))):
            claim = data.draw(st.sampled_from(claims))
            if claim in running:
                running.remove(claim)
                claim.give_back(0)
            elif claim in waiting and data.draw(st.booleans()):
                waiting.remove(claim)
                claim.withdraw()
            else:
                attempt(claim)
            if data.draw(st.booleans()):
                settle()
            used = Counter()
            for each in running:
                used.update(each.demand.resources)
            assert {r: n for r, n in limiter._used.items() if n} == used
            assert all(n <= limiter._limits[r] for r, n in used.items())
        settle()
        for claim in list(running):
            running.remove(claim)
            claim.give_back(0)
            settle()
        # Whatever still waits gets its turn once what runs ends, one after the other.
        for _ in range(len(waiting) + len(running)):
            if not running:
                break
            claim = running.pop()
            claim.give_back(0)
            settle()
        assert not waiting and not running
        for claim in claims:
            claim.remove()
        assert not limiter._claims and not limiter._limits and not any(limiter._used.values())


def config(rate_limiter, count=1, block="", extra=""):
    group = f"instance_group [ {{ count: {count} kind: KIND_CPU rate_limiter {{ {rate_limiter} }} }} ] {extra}"
    return batching(block, 4, group)


ONE = 'resources [ { name: "R" count: 1 } ]'


@pytest.fixture
def limited(load):
    """Loads the repository with the rate limiter on."""
    return lambda **changes: load(rate_limit="execution_count", **changes)


def clients_of(gateway, *names):
    return [Clients(gateway.find(name).model.executor) for name in names]


def run_all(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


def used(gateway):
    return {name: n for name, n in gateway.catalog.shared.limiter._used.items() if n}


def test_models_that_share_a_resource_run_one_after_the_other(repository, limited):
    for name in "ab":
        slow(repository, name, config(ONE))
    slow(repository, "free", batching("", 4))
    gateway = limited(inline_limit_us=0)

    async def main():
        a, b, free = clients_of(gateway, "a", "b", "free")
        blocker = request(1, turns=ENDLESS)
        a.send(blocker)
        await until(lambda: used(gateway))
        b.send(request(2))
        free.send(request(3))
        assert await free.all() == [3]
        assert b.ended == [] and b.scheduler.statistics.pending == 1 and len(b.scheduler._idle) == 1
        blocker.cancel()
        assert await b.all() == [2] and await a.all() == ["CANCELED"]
        assert not used(gateway)
        await gateway.catalog.close()

    run_all(main)


def test_off_is_the_default_and_ignores_the_config(repository, load):
    for name in "ab":
        slow(repository, name, config(ONE))
    gateway = load(inline_limit_us=0)

    async def main():
        a, b = clients_of(gateway, "a", "b")
        blocker = request(1, turns=ENDLESS)
        a.send(blocker)
        b.send(request(2))
        assert await b.all() == [2]
        blocker.cancel()
        await a.all()
        await gateway.catalog.close()

    run_all(main)


def test_instances_of_a_model_contend_too(repository, limited):
    slow(repository, "m", config(ONE, count=3))
    gateway = limited(inline_limit_us=0, rate_limit_resource="R:2")

    async def main():
        (m,) = clients_of(gateway, "m")
        blockers = [request(i, turns=ENDLESS) for i in range(2)]
        m.send(*blockers, request(2), request(3))
        await until(lambda: used(gateway) == {R: 2})
        assert m.scheduler.statistics.pending == 2 and len(m.scheduler._idle) == 1
        blockers[0].cancel()
        await until(lambda: len(m.ended) == 3)
        assert m.ended == ["CANCELED", 2, 3] and used(gateway) == {R: 1}
        blockers[1].cancel()
        await m.all()
        await gateway.catalog.close()

    run_all(main)


def test_runs_are_shared_by_priority(repository, limited):
    """Both models always have requests. The one with priority 3 gets a third of the turns of the other."""
    slow(repository, "a", config(ONE))
    slow(repository, "b", config(f"{ONE} priority: 3"))
    gateway = limited(inline_limit_us=0)

    async def main():
        a, b = clients_of(gateway, "a", "b")
        blocker = request(0, turns=ENDLESS)
        a.send(blocker)
        await until(lambda: used(gateway))
        order = []
        for clients, name in ((a, "a"), (b, "b")):
            for _ in range(60):
                asked = request(1)
                asked.done = lambda _, name=name: order.append(name)
                clients.scheduler.submit(asked)
        blocker.cancel()
        await until(lambda: len(order) == 120)
        await gateway.catalog.close()
        return order

    order = run_all(main)
    assert 18 <= order[:80].count("b") <= 22


class TestFair:
    @staticmethod
    def contend(claims, count, ns, cores=1):
        """Lets claims that always have a run take turns, until so many runs have ended. Returns those, in order."""
        running, ended = [], []
        while len(ended) < count:
            for claim in claims:
                if claim not in running and claim.take():
                    running.append(claim)
            assert len(running) == min(cores, len(claims))
            claim = running.pop(0)
            for other in claims:  # all others wait when this one ends
                if other is not claim and other not in running:
                    assert not other.take()
            ended.append(claim)
            claim.give_back(ns(claim))
        for claim in running:
            claim.give_back(ns(claim))
        return ended

    def test_time_is_shared_and_not_turns(self):
        """Of three models that always have requests, two have share 1, and one of these takes ten times as long."""
        limiter = RateLimiter([Supply(CORE.name, 1, None)])
        quick, long, large = (limiter.add([Demand({CORE: 1}, share=share)])[0] for share in (1, 1, 2))
        times = {quick: 1, long: 10, large: 4}
        ended = self.contend([quick, long, large], 3000, times.__getitem__)
        spent = {claim: ended.count(claim) * ns for claim, ns in times.items()}
        total = sum(spent.values())
        assert [round(ns / total, 2) for ns in spent.values()] == [0.25, 0.25, 0.5]

    def test_a_model_has_no_more_for_having_more_instances(self):
        limiter = RateLimiter([Supply(CORE.name, 2, None)])
        many, one = (limiter.add([Demand({CORE: 1}, share=1)] * count) for count in (8, 2))
        ended = self.contend([*many, *one], 2000, lambda _: 5, cores=2)
        assert 0.45 < sum(claim in one for claim in ended) / 2000 < 0.55

    def test_what_runs_side_by_side_is_charged_for_itself(self):
        limiter = RateLimiter([Supply(CORE.name, 2, None)])
        short, long = limiter.add([Demand({CORE: 1}, share=1)] * 2)
        for _ in range(100):
            assert short.take() and long.take()
            short.give_back(1)
            long.give_back(100)
        assert short.account is long.account and short.account.turn == 100 * 101

    def test_one_that_was_idle_makes_up_for_nothing(self):
        limiter = RateLimiter([Supply(CORE.name, 1, None)])
        busy, idle = (limiter.add([Demand({CORE: 1}, share=1)])[0] for _ in range(2))
        self.contend([busy], 100, lambda _: 7)
        ended = self.contend([busy, idle], 40, lambda _: 7)
        assert 18 <= ended.count(idle) <= 22

    def test_a_model_in_a_burst_leaves_the_cores_to_others(self, repository, load):
        """A hundred requests wait for one model. One to another model comes in its turn."""
        slow(repository, "a", config(""))
        slow(repository, "b", config(""))
        gateway = load(rate_limit="fair", inline_limit_us=0)
        limiter = gateway.catalog.shared.limiter
        assert limiter.fair and len(limiter._claims) == 2

        async def main():
            a, b = clients_of(gateway, "a", "b")
            order = []
            for clients, name, count in ((a, "a", 100), (b, "b", 3)):
                for _ in range(count):
                    asked = request(1)
                    asked.done = lambda _, name=name: order.append(name)
                    clients.scheduler.submit(asked)
            await until(lambda: len(order) == 103)
            await gateway.catalog.close()
            return order

        order = run_all(main)
        assert "b" in order[:20] and not used(gateway) and not limiter._claims

    @pytest.mark.parametrize("share", ["0", "-1", "two", "1e9"])
    def test_a_share_that_is_none_is_refused(self, repository, load, share):
        text = f'parameters {{ key: "share" value {{ string_value: "{share}" }} }}'
        double(repository, "m", config=batching() + text)
        with pytest.raises(ServingError, match=r"parameter 'share': expected a number"):
            load(rate_limit="fair").find("m")


def test_runs_on_the_event_loop_need_their_resources_too(repository, limited):
    slow(repository, "a", config(ONE))
    double(repository, "b", config=config(ONE))
    gateway = limited(inline_limit_us=100_000.0)

    async def main():
        a, b = clients_of(gateway, "a", "b")
        quick = lambda: request_of_double(gateway)  # noqa: E731
        for _ in range(60):
            await run(b.scheduler.submit, quick())
        assert b.scheduler._ran_on_loop and not used(gateway)
        blocker = request(1, turns=ENDLESS, width=9)
        a.send(blocker)
        await until(lambda: used(gateway))
        waits = asyncio.ensure_future(run(b.scheduler.submit, quick()))
        await until(lambda: b.scheduler.statistics.pending == 1)
        blocker.cancel()
        assert (await waits)["y"].tolist() == [[2, 2, 2, 2]]
        assert not used(gateway)
        await a.all()
        await gateway.catalog.close()

    run_all(main)


def request_of_double(gateway):
    from tests.service.test_execution import make_request

    return make_request(gateway.find("b").model, {"x": np.ones((1, 4), np.float32)}, gateway)


@pytest.mark.parametrize("how", ["fails", "leaves", "timeout", "overdue", "left the queue", "closes"])
def test_whatever_happens_to_a_run_its_resources_come_back(repository, limited, how):
    for name in "ab":
        slow(repository, name, config(ONE, block="dynamic_batching { }"))
    gateway = limited(inline_limit_us=0, **({"run_timeout": 0.2} if how == "overdue" else {}))

    async def main():
        a, b = clients_of(gateway, "a", "b")
        first = request(1, turns=ENDLESS, timeout_us=100_000 if how == "timeout" else 0)
        if how == "fails":
            first.inputs["turns"] = first.inputs["turns"].astype(np.float32)
        if how == "closes":
            first = request(1, turns=100_000)
        a.send(first)
        await asyncio.sleep(0.02)
        waits = request(2)
        b.send(waits, request(3, width=2))
        if how == "leaves":
            await until(lambda: b.scheduler.statistics.pending == 2)
            first.cancel()
        if how == "left the queue":
            await until(lambda: b.scheduler.statistics.pending == 2)
            waits.cancel()
            first.cancel()
        if how == "closes":
            await a.scheduler.close()
            assert len(gateway.catalog.shared.limiter._claims) == 1
        await b.all()
        assert b.ended == (["CANCELED", 3] if how == "left the queue" else [2, 3])
        await a.all()
        assert not used(gateway)
        await gateway.catalog.close() if how != "closes" else await b.scheduler.close()
        assert not gateway.catalog.shared.limiter._claims

    run_all(main)


def test_one_that_waits_and_leaves_blocks_nobody(repository, limited):
    """Model b wants more than is free, and its only client leaves. Model c wants what is free."""
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        slow(repository, name, config(f'resources [ {{ name: "R" count: {count} }} ]'))
    gateway = limited(inline_limit_us=0)

    async def main():
        a, b, c = clients_of(gateway, "a", "b", "c")
        blocker, leaves = request(1, turns=ENDLESS), request(2)
        a.send(blocker)
        await until(lambda: used(gateway))
        b.send(leaves)
        c.send(request(3))
        await until(lambda: c.scheduler.statistics.pending == b.scheduler.statistics.pending == 1)
        for _ in range(5):
            await asyncio.sleep(0.005)
        assert c.ended == []  # what is free is kept for b
        leaves.cancel()
        assert await c.all() == [3] and not blocker.ended
        blocker.cancel()
        await a.all()
        await gateway.catalog.close()

    run_all(main)


def test_many_models_under_load_all_end(repository, limited):
    """Three models with different demands, batches and instances. Some clients leave."""
    demands = {
        "a": "{ name: 'R' count: 2 }",
        "b": "{ name: 'R' count: 1 }, { name: 'S' count: 1 }",
        "c": "{ name: 'S' count: 2 }",
    }
    for i, (name, needed) in enumerate(demands.items()):
        block = "dynamic_batching { max_queue_delay_microseconds: 500 }" if i == 1 else "dynamic_batching { }"
        slow(repository, name, config(f"resources [ {needed} ] priority: {i + 1}", i + 1, block))
    gateway = limited(inline_limit_us=1000.0)

    async def main():
        clients = clients_of(gateway, *demands)
        random = np.random.default_rng(1)
        asked = []
        for number in range(300):
            each = request(number, turns=int(random.integers(1, 3000)), width=int(random.integers(1, 4)))
            asked.append(each)
            clients[number % 3].send(each)
            if number % 4 == 0:
                await asyncio.sleep(0.001)
            if number % 5 == 0:
                asked[int(random.integers(len(asked)))].cancel()
        for each in clients:
            await each.all()
            assert each.scheduler.statistics.pending == 0
        assert not used(gateway) and not gateway.catalog.shared.limiter._waiting
        await gateway.catalog.close()

    run_all(main)


class TestConfig:
    def test_a_demand_for_each_instance_those_on_gpus_first(self):
        from google.protobuf import text_format
        from tritonclient.grpc.model_config_pb2 import ModelConfig

        text = """instance_group [
            { count: 2 kind: KIND_CPU rate_limiter { resources [ { name: "R1" count: 4 } ] } },
            { gpus: [ 1, 2 ] kind: KIND_GPU rate_limiter {
                resources [ { name: "r1" count: 1 }, { name: "R2" global: true count: 2 } ] priority: 2 } },
            { count: 1 kind: KIND_CPU } ]"""
        found = text_format.Parse(text, ModelConfig())
        assert place(found, lambda: 3) == [None, None, 1, 2, None]
        on_gpu = [Demand({Resource("r1", i): 1, Resource("r2", None): 2}, 2) for i in (1, 2)]
        assert demands(found) == [*on_gpu, *[Demand({Resource("r1", 0): 4})] * 2, Demand({})]

    @pytest.mark.parametrize(
        ("resources", "named"),
        [
            (
                '[ { name: "R" count: 1 }, { name: "r" count: 2 } ]',
                "instance_group[0].rate_limiter.resources 'r', a name",
            ),
            ("[ { count: 1 } ]", "instance_group[0].rate_limiter.resources '', a name that is empty or given twice"),
        ],
    )
    def test_names_must_differ(self, repository, reason, resources, named):
        double(repository, "m", config=config(f"resources {resources}"))
        assert named in reason("m")

    def test_a_model_that_could_never_run_is_unavailable(self, repository, limited):
        for name, count in (("a", 2), ("b", 3)):
            double(repository, name, config=config(f'resources [ {{ name: "R" count: {count} }} ]'))
        gateway = limited(rate_limit_resource="R:2")
        rows = {row[0]: row[2:] for row in gateway.catalog.index()}
        assert rows["a"] == ("READY", "")
        assert rows["b"][0] == "UNAVAILABLE" and "'r': the instance needs 3" in rows["b"][1]
        assert len(gateway.catalog.shared.limiter._claims) == 1

    def test_the_option_may_be_given_several_times(self, monkeypatch):
        import typer
        from typer.testing import CliRunner

        from opgate.commands import serve
        from opgate.service import run

        seen = []
        monkeypatch.setattr(run, "run", lambda settings: seen.append(settings) or 0)
        command = typer.Typer()
        command.command()(serve.serve)
        options = ["--rate-limit", "execution_count"]
        for text in ("R1:10", "R2:5:0"):
            options += ["--rate-limit-resource", text]
        for arguments in (options, []):
            assert CliRunner().invoke(command, arguments).exit_code == 0
        assert [found.rate_limit for found in seen] == ["execution_count", "off"]
        assert [found.rate_limit_resource for found in seen] == ["R1:10,R2:5:0", ""]
        failed = CliRunner().invoke(command, ["--rate-limit-resource", "R1"])
        assert failed.exit_code == 2 and "'R1' is not <resource>:<count>" in failed.output

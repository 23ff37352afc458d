"""`opgate tune`: the simulation against what queueing theory says, the search, and the configs that it writes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from opgate.load.latencies import Slo
from opgate.load.target_model import LoadError
from opgate.service.core.spec import Batching, ModelSpec, QueuePolicy
from opgate.tune.configs import changed, refuse_unfit
from opgate.tune.cost import Cost, Costs, pairs, powers
from opgate.tune.proposal import Candidate, best, replicas, search, setups
from opgate.tune.simulation import Model, Overhead, Setup, simulate
from tests.conftest import ALL

MS = 1e-3


def model(
    seconds=lambda busy, rows: 10 * MS,
    sizes=(1,),
    spread=(1.0,),
    loop=1e-9,
    fixed=0.0,
    client=0.0,
    busy=(1, 2, 4),
    cores=99,
    limit=0.0,
) -> Model:
    """A model whose runs take `seconds`, times one of the values of `spread`."""
    by_case = {
        (1, count, rows): Cost(np.array(spread) * seconds(count, rows), seconds(count, rows))
        for count in busy
        for rows in sizes
    }
    return Model(Costs(tuple(sizes), by_case), Overhead(loop, fixed, client), 1, cores, limit)


def plain(instances=1, batching=None, max_rows=1) -> Setup:
    return Setup(instances, 1, batching, max_rows)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_runs_of_one_length_wait_as_theory_says(load):
    """M/D/1: Pollaczek and Khinchine's mean waiting time."""
    found = simulate(model(), plain(), load / (10 * MS), 60_000)
    expected = 10 * MS * (1 + load / (2 * (1 - load)))
    assert found.latencies.mean() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("instances", [1, 2, 4] if ALL else [1, 4])
def test_percentiles_are_those_of_theory(instances):
    """M/M/c: exponential runs, whose median is ln 2 of their mean. The waiting time is Erlang's."""
    runs = np.random.default_rng(1).exponential(10 * MS, 100_000)
    spread = runs / np.median(runs)
    load = 0.7
    rate = instances * load / (10 * MS)
    found = simulate(model(lambda busy, rows: float(np.median(runs)), spread=spread), plain(instances), rate, 100_000)
    offered = instances * load
    terms = [offered**k / math.factorial(k) for k in range(instances)]
    last = offered**instances / math.factorial(instances) / (1 - load)
    waits = last / (sum(terms) + last)  # Erlang C: the share that waits
    assert found.latencies.mean() == pytest.approx(10 * MS + waits * 10 * MS / (instances * (1 - load)), rel=0.08)
    if instances == 1:
        assert found.percentile(99) == pytest.approx(math.log(100) / (100 - rate), rel=0.1)


def test_the_event_loop_has_one_core():
    """Ten instances don't help if the loop is full: M/D/1 of the loop, and then a run."""
    found = simulate(model(loop=10 * MS, fixed=3 * MS), plain(10), 80, 60_000)
    assert found.latencies.mean() == pytest.approx(10 * MS * (1 + 0.8 / 0.4) + 10 * MS + 3 * MS, rel=0.05)


def test_a_queue_without_end_is_infinite():
    """With fewer requests than make it endless, the latencies say how long it is."""
    assert simulate(model(), plain(), 200).percentile(50) == math.inf
    assert simulate(model(loop=20 * MS), plain(4), 100).percentile(50) == math.inf
    assert simulate(model(), plain(), 120, 10_000).percentile(50) > 5


def test_batches_that_cost_nothing_more_hold_more():
    """A run of eight rows takes as long as one of one row."""
    eight = model(sizes=(1, 2, 4, 8))
    assert simulate(eight, plain(max_rows=8), 400).percentile(50) == math.inf
    batched = simulate(eight, plain(1, Batching(), 8), 400)
    assert 10 * MS < batched.percentile(50) < 30 * MS


def test_a_delay_is_waited_for():
    """One request now and then waits for others in vain."""
    delayed = Batching(adaptive=False, max_delay_ns=int(5 * MS * 1e9))
    found = simulate(model(sizes=(1, 2, 4, 8)), plain(1, delayed, 8), 0.5, 2_000)
    assert found.percentile(50) == pytest.approx(15 * MS, rel=0.01)


def test_cheap_runs_happen_on_the_loop():
    """They hold it, so a second instance changes nothing, and they don't pay for a thread."""
    cheap = model(lambda busy, rows: 20e-6, loop=20e-6, limit=100e-6)
    one, two = (simulate(cheap, plain(count), 20_000, 30_000).latencies.mean() for count in (1, 2))
    assert one == two
    # M/D/1 of both together. It reads all requests that are there before it runs one, which makes some wait longer.
    assert one == pytest.approx(40e-6 * (1 + 0.8 / 0.4), rel=0.3)


def test_runs_at_once_have_their_own_times():
    """Two runs at once take twice as long each, so the second instance brings nothing."""
    shared = model(lambda busy, rows: 10 * MS * busy, busy=(1, 2))
    assert search(shared, plain(2), Slo(99, 0.2)).rate < 1.1 * search(shared, plain(1), Slo(99, 0.2)).rate


def test_cores_are_shared():
    """Two instances on one core are no better than one, and a client on it takes its share."""
    instances = [simulate(model(cores=1), plain(count), 50).latencies.mean() for count in (1, 2)]
    assert instances[1] > 0.9 * instances[0]
    assert simulate(model(cores=1), plain(2), 120, 10_000).percentile(50) > 1
    alone, beside = (simulate(model(cores=1, client=cost), plain(), 50).latencies.mean() for cost in (0.0, 8 * MS))
    # With the client a run takes 1.4 times as long: M/D/1.
    assert alone == pytest.approx(10 * MS * (1 + 0.5 / (2 * 0.5)), rel=0.05)
    assert beside == pytest.approx(14 * MS * (1 + 0.7 / (2 * 0.3)), rel=0.1)


def test_the_search_ends_below_the_aim():
    slo = Slo(99, 50 * MS)
    found = search(model(), plain(), slo)
    assert simulate(model(), plain(), found.rate).percentile(99) < slo.seconds
    assert simulate(model(), plain(), 1.08 * found.rate).percentile(99) > slo.seconds
    assert search(model(), plain(), Slo(99, 5 * MS)).rate == 0


#: `make test-all` tries them all; each search has thousands of requests.
AIMS = (
    ((0.9, 0.05), (1.1, 0.2), (3, 0.05))
    if not ALL
    else [(a, s) for a in (0.1, 0.3, 0.9, 1.1, 1.5, 3) for s in (0.05, 0.2)]
)


@pytest.mark.parametrize(("aim", "share"), AIMS)
def test_the_search_ends_for_every_aim(aim, share):
    """A delay of the batch must end, whatever floats do to its time."""
    eight = model(sizes=(1, 2, 4, 8))
    delayed = Batching(adaptive=False, max_delay_ns=int(aim * 10 * MS * share * 1e9))
    found = search(eight, plain(1, delayed, 8), Slo(99, aim * 10 * MS))
    assert found.rate == 0 if aim < 1 + share else found.rate >= 0


@pytest.mark.parametrize("seconds", [0.5, 2, 20] if ALL else [2])
def test_no_rate_above_what_a_setup_can_do_is_promised(seconds):
    """A latency that is never reached in a short time doesn't hide that the queue grows."""
    assert search(model(), plain(), Slo(99, seconds)).rate <= 100


@pytest.mark.parametrize(
    ("batching", "kept"),
    [
        (Batching(), False),
        (Batching(False, (4,), 1000), False),
        (Batching(policy=QueuePolicy(max_queue_size=7)), True),
        (Batching(priority_levels=2, default_level=1), True),
        (Batching(preserve_ordering=True), True),
        (Batching(False, (4,), 1000, max_latency_ns=1), True),
    ],
)
def test_what_needs_batching_is_kept(batching, kept):
    """It is a part of dynamic batching, so nothing without that is proposed."""
    for rows in (1, 8):
        found = list(setups(ModelSpec("m", "1", {}, {}, rows, batching), 2, Slo(99, 1)))
        assert any(setup.batching is None for setup in found) != kept
        assert any(setup.batching is not None for setup in found) == (kept or rows > 1)


def test_a_simpler_setup_is_kept_unless_another_is_clearly_better():
    simple, same, better = Candidate(plain(), 100), Candidate(plain(2), 104), Candidate(plain(4), 120)
    assert best([simple, same]) is simple
    assert best([simple, same, better]) is better


@pytest.mark.parametrize(
    ("rate", "held", "headroom", "count"),
    [(100, 100, 0, 1), (101, 100, 0, 2), (100, 100, 0.2, 2), (1e6, 1e4, 0.5, 200)],
)
def test_gateways(rate, held, headroom, count):
    assert replicas(rate, held, headroom) == count


@pytest.mark.parametrize("cores", [1, 2, 3, 6, 16])
def test_instances_never_have_more_threads_than_there_are_cores(cores):
    assert powers(6) == [1, 2, 4, 6]
    assert all(instances * threads <= cores for instances, threads in pairs(cores))
    assert {(1, 1), (1, cores), (cores, 1)} <= set(pairs(cores))


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def test_a_setup_changes_what_it_is_about():
    before = config("""name: "m" max_batch_size: 8 instance_group { count: 3 } parameters { key: "a" value { string_value: "b" } }
        dynamic_batching { preferred_batch_size: 4 default_queue_policy { max_queue_size: 7 } }""")
    after = changed(before, plain(2, Batching(adaptive=False, max_delay_ns=1_500_000), 8))
    assert [(group.count, group.kind) for group in after.instance_group] == [(2, 2)]  # KIND_CPU
    assert after.parameters["intra_op_thread_count"].string_value == "1"
    assert after.parameters["a"].string_value == "b"
    assert after.dynamic_batching.max_queue_delay_microseconds == 1500
    assert not after.dynamic_batching.preferred_batch_size
    assert after.dynamic_batching.default_queue_policy.max_queue_size == 7
    assert not changed(before, plain()).HasField("dynamic_batching")
    assert changed(before, plain(1, Batching(), 8)).HasField("dynamic_batching")
    assert before.instance_group[0].count == 3


def test_a_config_that_limits_its_model_stays_one_that_loads():
    before = config("""name: "m" max_batch_size: 8 dynamic_batching { }
        instance_group { count: 3 rate_limiter { resources { name: "R" count: 2 } } }
        parameters { key: "max_latency_ms" value { string_value: "50" } }""")
    for after in (changed(before, plain(2)), changed(before, plain(2, Batching(), 8))):
        assert after.instance_group[0].rate_limiter == before.instance_group[0].rate_limiter
        assert ("max_latency_ms" in after.parameters) == after.HasField("dynamic_batching")
    assert "max_latency_ms" in before.parameters


def test_sequences_share_batches_by_the_rules_of_their_batcher():
    before = config("""name: "m" max_batch_size: 8
        sequence_batching { oldest { max_candidate_sequences: 9 preferred_batch_size: 4 } control_input { name: "go" } }""")
    delayed = changed(before, plain(2, Batching(adaptive=False, max_delay_ns=1_500_000), 8))
    assert not delayed.HasField("dynamic_batching") and delayed.max_batch_size == 8
    block = delayed.sequence_batching
    assert block.oldest.max_queue_delay_microseconds == 1500 and not block.oldest.preferred_batch_size
    assert block.oldest.max_candidate_sequences == 9 and block.control_input[0].name == "go"
    assert changed(delayed, plain(1, Batching(), 8)).sequence_batching.oldest.max_queue_delay_microseconds == 0
    alone = changed(before, plain(1))
    assert alone.max_batch_size == 1 and alone.sequence_batching.oldest.max_candidate_sequences == 9


def test_sequences_with_rows_of_their_own_keep_their_instances():
    """Instances say how many sequences there are at once."""
    found = list(setups(ModelSpec("m", "1", {}, {}, 8), 4, Slo(99, 1), direct=3))
    assert [(each.instances, each.threads, each.max_rows) for each in found] == [(3, 1, 8), (3, 2, 8), (3, 4, 8)]
    before = config('name: "m" max_batch_size: 8 sequence_batching { direct { max_queue_delay_microseconds: 7 } }')
    after = changed(before, found[1])
    assert after.sequence_batching == before.sequence_batching and after.max_batch_size == 8
    assert after.instance_group[0].count == 3 and after.parameters["intra_op_thread_count"].string_value == "2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'platform: "ensemble" ensemble_scheduling { step { model_name: "a" } step { model_name: "b" } }',
            "steps, a, b",
        ),
        ("instance_group { kind: KIND_GPU }", "only instances on the CPU"),
        ("instance_group { gpus: 1 }", "only instances on the CPU"),
        ('backend: "python"', "is a model in Python"),
    ],
)
def test_what_can_not_be_tuned_is_refused(text, said):
    with pytest.raises(LoadError, match=said):
        refuse_unfit(config(f'name: "m" {text}'))

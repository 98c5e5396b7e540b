"""The router of simulated replicas: who takes a request."""

from __future__ import annotations

from types import SimpleNamespace

from workshop.simulate.arrivals import Arrival
from workshop.simulate.worker import Watch, route


def test_a_prefix_stays_at_home_until_its_replica_is_crowded():
    """Beside an idlest replica of 2 requests a home of 1.5 × 2 + 4 = 7 is not crowded, and one of 8 is."""
    idle, home = SimpleNamespace(unfinished=2), SimpleNamespace(unfinished=7)
    same, other = Arrival(0.0, 100, 5, (("same", 64),)), Arrival(0.0, 100, 5)
    homes = {"same": home}
    assert route("prefix", [home, idle], 0, same, homes) is home
    assert (
        route("prefix", [home, idle], 0, other, homes)
        is route("least-busy", [home, idle], 0, same, homes)
        is idle
    )
    home.unfinished = 8
    assert route("prefix", [home, idle], 0, same, homes) is idle and homes == {"same": idle}, (
        "it moves"
    )
    home.unfinished, idle.unfinished = 2, 3
    assert route("prefix", [home, idle], 0, same, homes) is idle, "and stays"
    assert [route("round-robin", [home, idle], turn, same, {}) for turn in range(3)] == [
        home,
        idle,
        home,
    ]


def test_over_time_shows_the_most_requests_of_each_span():
    """One request in one step runs from its first kernel on; a peak between two points is not lost; replicas add up."""

    def step(began_s, running, waiting):
        return [
            SimpleNamespace(
                began_s=began_s, running=running, waiting=waiting, kv_cache_usage=running / 100
            )
        ]

    single, replica = Watch(), type("Replica", (), {"ended_s": 0.9})()
    single.seen(replica, step(0, 1, 0))
    single.ended(replica)
    assert set(single.over_time()["running"]) == {1}
    two = Watch()
    for replica, began_s, *state in (
        ("a", 0, 3, 0),
        ("a", 40.1, 8, 2),
        ("a", 40.2, 4, 0),
        ("b", 40.15, 5, 0),
    ):
        two.seen(replica, step(began_s, *state))
    two.seen("b", step(100, 1, 0))
    timeline = two.over_time()
    assert (
        max(timeline["running"]),
        max(timeline["waiting"]),
        max(timeline["kv_cache_usage"]),
    ) == (
        13,
        2,
        0.08,
    )
    assert [timeline["running"][at] for at in (0, 79, 80, 81, 199)] == [3, 3, 13, 9, 9]

"""The router of simulated replicas: who takes a request."""

from __future__ import annotations

from types import SimpleNamespace

from workshop.simulate.arrivals import Arrival
from workshop.simulate.worker import route


def test_a_prefix_stays_at_home_until_its_replica_is_crowded():
    """Beside an idlest replica of 2 requests a home of 1.5 × 2 + 4 = 7 is not crowded, and one of 8 is."""
    idle, home = SimpleNamespace(unfinished=2), SimpleNamespace(unfinished=7)
    same, other = Arrival(0.0, 100, 5, "same", 64), Arrival(0.0, 100, 5)
    homes = {"same": home}
    assert route("prefix", [home, idle], 0, same, homes) is home
    assert route("prefix", [home, idle], 0, other, homes) is route("least-busy", [home, idle], 0, same, homes) is idle
    home.unfinished = 8
    assert route("prefix", [home, idle], 0, same, homes) is idle and homes == {"same": idle}, "it moves"
    home.unfinished, idle.unfinished = 2, 3
    assert route("prefix", [home, idle], 0, same, homes) is idle, "and stays"
    assert [route("round-robin", [home, idle], turn, same, {}) for turn in range(3)] == [home, idle, home]

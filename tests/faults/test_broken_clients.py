"""Who is broken, in which rounds."""

import pytest
import torch

from wardround import faults
from wardround.attacks import LocalData
from wardround.errors import ContractError, ParameterError
from wardround.faults import BrokenClients, draw_broken

NAMES = [f"h{i}" for i in range(10)]


@pytest.mark.parametrize("seed", range(20))
def test_broken_clients_are_drawn_from_those_who_do_not_attack(seed):
    attackers = {"h1", "h2", "h3"}
    broken = draw_broken(NAMES, 0.3, seed, attackers)
    assert len(broken) == 3
    assert not broken & attackers
    assert broken == draw_broken(NAMES, 0.3, seed, attackers)


def test_other_seeds_break_other_clients():
    assert len({draw_broken(NAMES, 0.3, seed) for seed in range(10)}) > 5


def test_more_than_there_are_is_refused():
    with pytest.raises(
        ParameterError, match=r"fault.fraction=0.8 of 10 clients is 8, but only 7 do not attack"
    ):
        draw_broken(NAMES, 0.8, 0, {"h1", "h2", "h3"})


def test_names_by_hand_are_checked():
    broken = BrokenClients(faults.create("unit-error"), ["h1", "h99"])
    with pytest.raises(ParameterError, match=r"fault.clients: there is no 'h99'; did you mean 'h9'"):
        broken.check(NAMES, ())
    with pytest.raises(ParameterError, match=r"'h1' attacks in this run; a client is an attacker or broken"):
        BrokenClients(faults.create("unit-error"), ["h1"]).check(NAMES, {"h1"})


def test_the_window():
    broken = BrokenClients(faults.create("unit-error"), ["a"], start=2, end=4)
    assert [t for t in range(1, 7) if broken.active(t)] == [2, 3]
    assert broken.failing(2) == {"a"}
    assert broken.failing(4) == frozenset()


def test_none_breaks_nobody():
    assert BrokenClients(faults.create("none"), ["a"]).clients == frozenset()
    assert not BrokenClients.none().active(1)


def test_a_fault_that_returns_other_shapes_is_named(registries):
    @faults.register("torn")
    class Torn(faults.DataFault):
        """Half of the columns are missing."""

        def spoil(self, data, generator):
            return LocalData(data.inputs[:, :1], data.targets, data.num_classes)

    data = LocalData(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), 2)
    with pytest.raises(ContractError, match=r"fault 'torn'.*spoil returned inputs of shape \(3, 1\)"):
        BrokenClients(faults.create("torn"), ["a"]).spoil("a", data)

"""The round loop: one `Federation`, which has `Clients`, simulated here or behind a network."""

from wardround.federation.clients import Clients
from wardround.federation.loop import Federation
from wardround.federation.schedule import Schedule
from wardround.federation.simulated import SimulatedClients, simulated_federation

__all__ = ["Clients", "Federation", "Schedule", "SimulatedClients", "simulated_federation"]

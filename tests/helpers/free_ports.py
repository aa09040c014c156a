"""Ports for servers that a test starts in a moment."""

import random
import socket


def free_ports(count):
    """Ports of 127.0.0.1 that nobody uses, all different.

    They lie below those that the system gives to outgoing connections: none of these takes one of them before the
    server does.
    """
    ports = set()
    while len(ports) < count:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.add(port)
    return sorted(ports)


def free_port():
    """One of them."""
    return free_ports(1)[0]

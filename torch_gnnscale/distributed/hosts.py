"""What ranks need of their machines before they connect: an address that others reach, and room for sockets."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import resource
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from .. import machine

_OTHER_FILES = 16
"""Files that a process opens besides, for a moment."""
_SIOCGIFADDR = 0x8915


class Card(NamedTuple):
    """What a rank says of its machine."""

    machine: str
    """:func:`torch_gnnscale.machine.identity`."""
    host: str
    """Its name."""
    address: str
    """Where Gloo listens; "" if that is not known."""
    problem: str | None
    """Why this rank cannot connect to others."""


def own_card(files: int) -> Card:
    """That of this process, which is going to open so many files and sockets."""
    problem = None
    try:
        check_open_files(files)
    except OSError as error:
        problem = str(error)
    return Card(machine.identity(), socket.gethostname(), gloo_address(), problem)


def check_cards(cards: Sequence[Card]) -> None:
    """Compares those of all ranks.

    Raises:
        ValueError: a rank cannot connect; or ranks are on several machines, and Gloo listens where only one's own
            processes reach it.
    """
    several = len({card.machine for card in cards}) > 1
    for rank, card in enumerate(cards):
        if card.problem is not None:
            raise ValueError(f"rank {rank}: {card.problem}")
        if several and card.address and ipaddress.ip_address(card.address).is_loopback:
            raise ValueError(
                f"rank {rank} on {card.host}: expected an address that other machines reach, found that Gloo listens "
                f"at {card.address}; set GLOO_SOCKET_IFNAME there to the name of a network interface, such as eth0"
            )


def check_open_files(files: int) -> int:
    """How many files and sockets this process may open, if that is enough for so many besides those that are open.

    Raises:
        OSError: it is not.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = machine.open_files() + files + _OTHER_FILES
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise OSError(f"open files: expected a limit of at least {needed}, for {files} more, found {limit}; "
                      f"ulimit -n {needed} sets it")  # fmt: skip
    return limit


def gloo_address() -> str:
    """Where Gloo of this process listens: on the interface that GLOO_SOCKET_IFNAME names, else at the first address of
    the host's name that is its own, else at the loopback device; "" for an interface without an IPv4 address."""
    if names := os.environ.get("GLOO_SOCKET_IFNAME"):
        return _address_of(names.split(",")[0])
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(address)
        except OSError:
            continue
        return str(address[0]).partition("%")[0]
    return "127.0.0.1"


def _address_of(interface: str) -> str:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])

"""What ranks check of their machines before they connect: an address that others reach, and the limit of sockets."""

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
"""Further files that a process may open for a moment."""
_SIOCGIFADDR = 0x8915


class Card(NamedTuple):
    """What a rank tells the others of its machine."""

    machine: str
    """:func:`torch_gnnscale.machine.identity`."""
    host: str
    """The machine's name."""
    address: str
    """The address at which Gloo listens; "" if that is not known."""
    problem: str | None
    """Why this rank cannot connect to others; None if it can."""


def own_card(files: int) -> Card:
    """The card of this process, which is going to open ``files`` files and sockets."""
    problem = None
    try:
        check_open_files(files)
    except OSError as error:
        problem = str(error)
    return Card(machine.identity(), socket.gethostname(), gloo_address(), problem)


def check_cards(cards: Sequence[Card]) -> None:
    """Checks the cards of all ranks.

    Raises:
        ValueError: a rank cannot connect; or ranks are on several machines, and Gloo of one listens at a loopback
            address, which other machines do not reach.
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
    """Checks that this process may open ``files`` files and sockets more; returns its limit of open files.

    Raises:
        OSError: the limit is too low.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = machine.open_files() + files + _OTHER_FILES
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise OSError(f"open files: expected a limit of at least {needed}, for {files} more, found {limit}; "
                      f"ulimit -n {needed} sets it")  # fmt: skip
    return limit


def gloo_address() -> str:
    """The address at which Gloo of this process listens: that of the interface that GLOO_SOCKET_IFNAME names ("" if it
    has no IPv4 address); else the first address of the host's name that belongs to this machine; else 127.0.0.1."""
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

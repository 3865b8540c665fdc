"""What ranks need of their machines: an address that other machines reach."""

import re
import subprocess

import pytest
from helpers import forked
from helpers.parts import homogeneous

from torch_gnnscale import partition
from torch_gnnscale.comm.rendezvous import Card, check_cards, gloo_address

ONE, OTHER = "one 1 net", "other 2 net"


def test_cards():
    check_cards([Card(ONE, "one", "127.0.0.1", None), Card(ONE, "one", "127.0.0.1", None)])
    check_cards([Card(ONE, "one", "10.0.0.1", None), Card(OTHER, "other", "", None)])
    for address in ("127.0.1.1", "::1"):
        message = "rank 1 on other: expected an address that other machines reach, found that Gloo listens at "
        message += f"{address}; set GLOO_SOCKET_IFNAME there to the name of a network interface, such as eth0"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            check_cards([Card(ONE, "one", "10.0.0.1", None), Card(OTHER, "other", address, None)])
    with pytest.raises(ValueError, match=r"^rank 0: no luck$"):
        check_cards([Card(ONE, "one", "10.0.0.1", "no luck"), Card(OTHER, "other", "127.0.0.1", None)])


LISTENS = """
import os, socket
from torch import distributed as dist
from torch_gnnscale.comm.rendezvous import gloo_address

def sockets():
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.islink(link)}

before = sockets()
group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
made = sockets() - before
for line in open("/proc/net/tcp").read().splitlines()[1:]:
    _, address, _, state, *_, inode = line.split()[:10]
    if f"socket:[{inode}]" in made:
        print(socket.inet_ntoa(bytes.fromhex(address.split(":")[0])[::-1]), gloo_address())
"""


@pytest.mark.slow
@pytest.mark.parametrize("interface", ["lo", ""])
def test_the_address_is_where_gloo_listens(interface, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    if not interface:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    process = forked.run(LISTENS)
    assert process.returncode == 0, process.stderr
    if not process.stdout:
        pytest.skip("the host's name is an address of IPv6")
    listens, found = process.stdout.split()
    assert found == listens


def test_an_interface_that_is_not_there(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    assert gloo_address() == ""


OPENS = f"""
import os, sys
if os.environ["RANK"] == "1":
    {forked.ELSEWHERE}
from torch import distributed as dist
from torch.testing._internal.distributed import fake_pg  # a group that is no Gloo one, as NCCL's
from torch_gnnscale.distributed import open_part
dist.init_process_group("fake", store=dist.FileStore(sys.argv[1], 2), rank=int(os.environ["RANK"]), world_size=2)
try:
    open_part(sys.argv[2], timeout=60)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_two_machines_of_which_one_listens_at_loopback(tmp_path):
    """The second process is in a network namespace of its own, in which the host's name is no address."""
    if subprocess.run(["unshare", "-Urn", "true"], capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here")
    partition.write(homogeneous(), tmp_path / "parts", parts=2, method="random")
    said = forked.run_ranks(2, OPENS, str(tmp_path / "store"), str(tmp_path / "parts"))
    assert said[0].stdout == said[1].stdout, said
    assert said[0].stdout.startswith("rank 0 on "), said
    assert "found that Gloo listens at 127.0.0.1; set GLOO_SOCKET_IFNAME there to the name of a " in said[0].stdout

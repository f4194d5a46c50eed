"""Run the programs in a network namespace of their own, and print the names that they look up and the addresses.

    unshare --net python -m tests.service.own_network DATASET ENCODER STORE FOLDER

All addresses are local in this namespace, so a connection to any server arrives at the loopback interface.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

ROUTES = ("link set lo up", "route add local 0.0.0.0/0 dev lo", "-6 route add local ::/0 dev lo")
# An answer of DNS: the name is that of the question, at byte 12, and the address is 192.0.2.1.
ANSWER = bytes.fromhex("c00c 0001 0001 0000003c 0004 c0000201")

TRAIN_AND_BUILD = """
import sys
import recollect

dataset, encoder, folder = sys.argv[1:]
flags = {"encoder": "static", "static_from": encoder, "epochs": 1, "max_length": 32, "device": "cpu"}
recollect.train(dataset, out=f"{folder}/run", **flags)
recollect.build(f"{folder}/run", store=f"{folder}/store", lexical="off")
"""
# Shows that the recorder records.
CONNECT = "import socket; socket.create_connection(('reports.example.com', 443), 5)"


class Recorder:
    """Records all names that are looked up, and all addresses beyond this machine to which packets go."""

    def __init__(self) -> None:
        for command in ROUTES:
            subprocess.run(["ip", *command.split()], check=True)
        self.found: set[str] = set()
        self._dns = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self._dns.bind(("::", 53))
        self._packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))  # 3: all protocols
        for run in (self._answer, self._watch):
            threading.Thread(target=run, daemon=True).start()

    def _answer(self) -> None:
        while True:
            query, client = self._dns.recvfrom(4096)
            end = query.index(0, 12)
            self.found.add(query[13:end].decode("ascii", "replace").translate(dict.fromkeys(range(32), ".")))
            is_ipv4 = query[end + 1 : end + 3] == b"\0\1"
            header = query[:2] + bytes([0x81, 0x80, 0, 1, 0, is_ipv4, 0, 0, 0, 0])
            self._dns.sendto(header + query[12 : end + 5] + ANSWER * is_ipv4, client)

    def _watch(self) -> None:
        while True:
            packet, (_, protocol, *_) = self._packets.recvfrom(4096)
            address = ""
            if protocol == 0x0800:
                address = socket.inet_ntop(socket.AF_INET, packet[16:20])
            elif protocol == 0x86DD:
                address = socket.inet_ntop(socket.AF_INET6, packet[24:40])
            if address and address != "::1" and not address.startswith("127."):
                self.found.add(address)


def run_programs(dataset: str, encoder: str, store: str, folder: str) -> None:
    """Train and build, predict, and serve, at the same time and each in a new interpreter."""
    queries = Path(folder, "queries.txt")
    queries.write_text("How long should bread be in the oven\n")
    recollect = [sys.executable, "-m", "recollect"]
    files = ["--input", str(queries), "--output", f"{folder}/answers.jsonl", "--input-format", "text"]
    building = subprocess.Popen([sys.executable, "-c", TRAIN_AND_BUILD, dataset, encoder, folder])
    predicting = subprocess.Popen([*recollect, "predict", "--store", store, *files, "--workers", "1"])
    serving = subprocess.Popen([*recollect, "serve", "--store", store, "--port", "0"], stderr=subprocess.PIPE)
    events = map(json.loads, serving.stderr or ())
    url = next(event["url"] for event in events if event["event"] == "serving")
    query = urllib.request.Request(f"{url}/predict", b'{"query": "bread"}', {"Content-Type": "application/json"})
    assert urllib.request.urlopen(query).status == 200
    assert (building.wait(), predicting.wait()) == (0, 0)
    serving.terminate()
    serving.communicate()
    assert serving.returncode == 0


def main() -> None:
    recorder = Recorder()
    run_programs(*sys.argv[1:])
    found = sorted(recorder.found)
    subprocess.run([sys.executable, "-c", CONNECT], stderr=subprocess.DEVNULL, check=False)
    json.dump({"programs": found, "control": sorted(recorder.found)}, sys.stdout)


if __name__ == "__main__":
    main()

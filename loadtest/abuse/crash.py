"""A quota of 300 a day, used up at once, and `kill -9` right behind; four lives."""

import os, signal
from abuse.stage import token_request
from rig.clients import Clients
from rig.net import free_address

KEY = "c" * 32 + "0123456789abcdef"


def scenarios(stage, quota=300, lives=4):
    keys, address, admin = stage.path("keys"), free_address(), free_address()
    signed = []
    for _ in range(lives):
        issuer = stage.issuer([("one", KEY, f"{quota}/1d")], keys=keys, address=address, admin=admin)
        clients = Clients([address], 8)
        seen = clients.run([[token_request(stage.issuer_url, KEY)] * (quota + 50)])
        os.kill(issuer.pid, signal.SIGKILL)
        issuer.process.wait()
        clients.close()
        stage.running.remove(issuer)
        signed.append(seen[200])
    remark = f"signed in each life: {', '.join(map(str, signed))}; in all {sum(signed):,} of {quota:,} a day"
    yield f"issuer: kill -9 after a burst, {lives} lives", None, None, None, remark
